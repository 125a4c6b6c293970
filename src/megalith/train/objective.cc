#include "megalith/train/objective.h"

#include <ATen/ATen.h>

namespace megalith::train {

std::vector<std::string> Objective::metrics_keys(Phase phase) const {
  if (phase == Phase::kTraining) return {};
  return {"token_accuracy"};
}

model::ModelInput Objective::inputs(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                                    Phase phase) const {
  const at::Device device = chunk.options().device;
  model::ModelInput input{.layout = batch.layout, .hidden = std::move(hidden)};
  input.training = phase == Phase::kTraining;
  if (chunk.place().embedding) input.ids = batch.ids.to(device, /*non_blocking=*/true);
  if (chunk.place().head) input.targets = batch.labels.to(device, /*non_blocking=*/true);
  return input;
}

MicrobatchLoss Objective::loss(const MicrobatchOutput& output, const data::MicroBatch& batch, int /*microbatch*/,
                               Phase /*phase*/) const {
  MicrobatchLoss loss{.sum = output.token_losses.sum(), .count = batch.loss_tokens};
  if (output.correct.defined())
    loss.metrics.push_back({"token_accuracy", output.correct.sum(), static_cast<double>(batch.loss_tokens)});
  return loss;
}

}  // namespace megalith::train
