#include "megalith/train/objectives/objective.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <typeinfo>

#include "megalith/ops/kernel/to_device.h"
#include "megalith/train/objectives/last_stage.h"

namespace megalith::train {

bool Objective::sums_token_losses() const { return typeid(*this) == typeid(Objective); }

std::vector<std::string> Objective::metrics_keys(Phase phase) const {
  if (phase == Phase::kTraining) return {};
  return {"token_accuracy"};
}

model::ModelInput Objective::inputs(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                                    Phase phase) const {
  const at::Device device = chunk.options().device;
  model::ModelInput input{.layout = batch.layout, .hidden = std::move(hidden)};
  input.training = phase == Phase::kTraining;
  if (chunk.place().reads_ids()) input.ids = ops::to_device(batch.ids, device);
  if (chunk.place().head) input.targets = ops::to_device(batch.labels, device);
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
    if (trains_attached()) input.mtp_losses = &further;
    if (loss_grad_ && batch.samples > 0 && sums_token_losses()) input.loss_grad = loss_grad_(batch.loss_tokens);
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

namespace {

// Tokens whose target stands `depth` places further on in the same sequence: labels from place `depth` of each
// sequence. [t] int64, as the collator gives them: in host memory, so that counting waits for no device.
int64_t targets_at_depth(const at::Tensor& labels, const ops::SequenceLayout& layout, int64_t depth) {
  check(labels.device().is_cpu(), "targets of multi-token prediction are counted on the host, and these are on {}",
        labels.device().str());
  const at::Tensor contiguous = labels.contiguous();
  const int64_t* values = contiguous.const_data_ptr<int64_t>();
  const std::vector<int64_t>& ends = layout.cumulative();
  int64_t count = 0;
  for (size_t sequence = 0; sequence + 1 < ends.size(); ++sequence)
    for (int64_t token = ends[sequence] + depth; token < ends[sequence + 1]; ++token) count += values[token] >= 0;
  return count;
}

}  // namespace

std::vector<AttachedLoss> mtp_losses(const model::ModelConfig& config, const std::vector<at::Tensor>& token_losses,
                                     const data::MicroBatch& batch) {
  std::vector<AttachedLoss> losses;
  const auto names = attached_loss_names(config);
  for (size_t depth = 0; depth < token_losses.size(); ++depth)
    losses.push_back({.name = names[depth],
                      .sum = token_losses[depth].sum(),
                      .count = targets_at_depth(batch.labels, batch.layout, static_cast<int64_t>(depth) + 1),
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
