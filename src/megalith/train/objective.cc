#include "megalith/train/objective.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <typeinfo>

#include "megalith/ops/to_device.h"
#include "megalith/train/last_stage.h"

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

std::vector<AttachedLoss> mtp_losses(const model::ModelConfig& config, const std::vector<at::Tensor>& token_losses,
                                     const data::MicroBatch& batch) {
  std::vector<AttachedLoss> losses;
  const auto names = attached_loss_names(config);
  at::Tensor targets = batch.labels;
  for (size_t depth = 0; depth < token_losses.size(); ++depth) {
    targets = model::shift_labels(targets, batch.layout);
    losses.push_back({.name = names[depth],
                      .sum = token_losses[depth].sum(),
                      .count = targets.ge(0).sum().item<int64_t>(),
                      .factor = config.mtp_loss_factor / static_cast<double>(token_losses.size())});
  }
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
