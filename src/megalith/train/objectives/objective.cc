// Language modeling as an objective: the inputs of a chunk, the forward pass with the head, and the losses of
// multi-token prediction.
//
// Legend: t tokens of a micro-batch on this rank, v/tp its part of the vocabulary.
#include "megalith/train/objectives/objective.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <limits>
#include <typeinfo>

#include "megalith/ops/kernel/host_values.h"
#include "megalith/ops/loss/cross_entropy.h"

namespace megalith::train {

namespace {

// Returns for each token whether its target has the largest logit: logits [t, v/tp], targets [t] -> bool [t]. Each rank
// finds the best of its part of the vocabulary; the ranks then exchange value and id, and the first rank with the
// largest value wins. Traffic: 16 bytes per token and rank.
at::Tensor predictions_right(const at::Tensor& logits, const at::Tensor& targets, const ops::VocabRange& range,
                             const comm::Group& tp) {
  const at::NoGradGuard no_grad;
  const int64_t t = logits.size(0);
  at::Tensor best = at::full({t}, -std::numeric_limits<double>::infinity(), logits.options().dtype(at::kDouble));
  at::Tensor ids = at::full({t}, -1, targets.options());
  if (range.end > range.begin) {  // a rank may hold only padding of the vocabulary
    const auto [value, index] = logits.narrow(1, 0, range.end - range.begin).max(1);
    best = value.to(at::kDouble);
    ids = index + range.begin;
  }
  if (tp.size() > 1) {
    const at::Tensor own_best = at::stack({best, ids.to(at::kDouble)});  // ids are exact in fp64
    const at::Tensor all = at::empty({tp.size() * 2, t}, own_best.options());
    tp.all_gather(all, own_best, "likeliest tokens");
    const at::Tensor by_rank = all.view({tp.size(), 2, t});
    const at::Tensor winner = by_rank.select(1, 0).argmax(0, /*keepdim=*/true);
    ids = by_rank.select(1, 1).gather(0, winner).squeeze(0).to(at::kLong);
  }
  return ids.eq(targets);  // an ignored target (-100) never equals an id
}

// Ends a forward pass; `input` has targets, `chunk` the head. Computing `correct` needs the logits of the whole
// micro-batch at once, so it is ignored for models that never hold them (ModelOptions::loss_chunk) and for heads that
// have none. Collective over tp.
MicrobatchOutput run_last_stage(const model::GptModel& chunk, model::ModelInput input, bool correct) {
  if (!correct || chunk.options().loss_chunk > 0 || !chunk.head()->predicts_tokens())
    return {.token_losses = chunk.forward(input)};
  const at::Tensor targets = std::exchange(input.targets, at::Tensor());
  const at::Tensor logits = chunk.forward(input);
  const comm::Group tp = chunk.tensor_parallel().group;
  MicrobatchOutput output;
  output.correct = predictions_right(logits, targets, chunk.vocab_range(), tp);
  output.token_losses = ops::cross_entropy(logits, targets, chunk.vocab_range(), tp, chunk.options().loss);
  return output;
}

}  // namespace

// A derived class may override loss(), so only the base class itself can promise a plain sum.
bool Objective::sums_token_losses() const { return typeid(*this) == typeid(Objective); }

std::optional<double> Objective::known_loss_grad(const data::MicroBatch& batch) const {
  if (!loss_grad_ || batch.samples == 0 || !sums_token_losses()) return std::nullopt;
  return loss_grad_(batch.loss_tokens);
}

std::vector<std::string> Objective::metrics_keys(Phase phase) const {
  if (phase == Phase::kTraining) return {};
  return {"token_accuracy"};
}

model::ModelInput Objective::inputs(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                                    Phase phase) const {
  const at::Device device = chunk.options().device;
  model::ModelInput input{.layout = batch.layout, .hidden = std::move(hidden)};
  input.training = phase == Phase::kTraining;
  std::optional<TraceRecorder::Scope> span;
  if (trace_ != nullptr && (chunk.place().reads_ids() || chunk.place().head))
    span.emplace(trace_->span({.name = "batch-to-device", .lane = TraceLane::kCopies}));
  if (chunk.place().reads_ids()) input.ids = ops::to_device(batch.ids, device);
  if (chunk.place().head) input.targets = ops::to_device(batch.labels, device);
  if (chunk.place().embedding) {
    input.pixels = batch.pixels;  // the tower copies the images that it runs
    input.grids = batch.grids;
    if (batch.visual_rows.defined()) input.visual_rows = ops::to_device(batch.visual_rows, device);
    input.audio_features = batch.audio_features;
    input.audio_lengths = batch.audio_lengths;
    if (batch.audio_rows.defined()) input.audio_rows = ops::to_device(batch.audio_rows, device);
  }
  return input;
}

at::Tensor Objective::run_stage(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                                int /*microbatch*/, Phase phase) const {
  return chunk.forward(inputs(batch, chunk, std::move(hidden), phase));
}

MicrobatchLoss Objective::run_head(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                                   int microbatch, Phase phase) const {
  model::ModelInput input = inputs(batch, chunk, std::move(hidden), phase);
  std::vector<at::Tensor> further;
  if (phase == Phase::kTraining) {
    if (trains_attached()) request_mtp(batch, chunk, further, input);
    // With a known gradient the head can run forward and backward chunk by chunk.
    input.loss_grad = known_loss_grad(batch);
  }
  const MicrobatchOutput output = run_last_stage(chunk, std::move(input), wants_correct(phase));
  if (batch.samples == 0) return {.sum = at::zeros({}, output.token_losses.options())};
  MicrobatchLoss result = loss(output, batch, microbatch, phase);
  result.attached = mtp_losses(chunk.config(), further, batch);
  return result;
}

std::vector<std::string> attached_loss_names(const model::ModelConfig& config) {
  std::vector<std::string> names;
  for (int64_t depth = 1; depth <= config.mtp_layers; ++depth) names.push_back(fmt::format("mtp_{}_loss", depth));
  return names;
}

void request_mtp(const data::MicroBatch& batch, const model::GptModel& chunk, std::vector<at::Tensor>& token_losses,
                 model::ModelInput& input) {
  const at::Device device = chunk.options().device;
  input.mtp_losses = &token_losses;
  for (const data::FurtherTokens& further : batch.further)
    input.ahead.push_back({ops::to_device(further.ids, device), ops::to_device(further.labels, device)});
}

// The factor is shared by all depths, as in Megatron.
std::vector<AttachedLoss> mtp_losses(const model::ModelConfig& config, const std::vector<at::Tensor>& token_losses,
                                     const data::MicroBatch& batch) {
  std::vector<AttachedLoss> losses;
  const auto names = attached_loss_names(config);
  for (size_t depth = 0; depth < token_losses.size(); ++depth)
    losses.push_back({.name = names[depth],
                      .sum = token_losses[depth].sum(),
                      .count = batch.further.at(depth).loss_tokens,
                      .factor = config.mtp_loss_factor / static_cast<double>(token_losses.size())});
  return losses;
}

MicrobatchLoss Objective::loss(const MicrobatchOutput& output, const data::MicroBatch& batch, int /*microbatch*/,
                               Phase /*phase*/) const {
  MicrobatchLoss loss{.sum = output.token_losses.sum(), .count = batch.loss_tokens};
  if (output.correct.defined())
    loss.metrics.push_back({"token_accuracy", output.correct.sum(), static_cast<double>(batch.loss_tokens)});
  return loss;
}

}  // namespace megalith::train
