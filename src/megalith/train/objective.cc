#include "megalith/train/objective.h"

#include <ATen/ATen.h>

#include "megalith/train/last_stage.h"

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

at::Tensor Objective::run_stage(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                                int /*microbatch*/, Phase phase) const {
  return chunk.forward(inputs(batch, chunk, std::move(hidden), phase));
}

MicrobatchLoss Objective::run_head(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                                   int microbatch, Phase phase) const {
  const MicrobatchOutput output =
      run_last_stage(chunk, inputs(batch, chunk, std::move(hidden), phase), wants_correct(phase));
  if (batch.samples == 0) return {.sum = at::zeros({}, output.token_losses.options())};
  return loss(output, batch, microbatch, phase);
}

MicrobatchLoss Objective::loss(const MicrobatchOutput& output, const data::MicroBatch& batch, int /*microbatch*/,
                               Phase /*phase*/) const {
  MicrobatchLoss loss{.sum = output.token_losses.sum(), .count = batch.loss_tokens};
  if (output.correct.defined())
    loss.metrics.push_back({"token_accuracy", output.correct.sum(), static_cast<double>(batch.loss_tokens)});
  return loss;
}

}  // namespace megalith::train
