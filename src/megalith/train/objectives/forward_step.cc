// Adapts Megatron's pair of functions to Objective: the forward step runs a chunk and returns a loss function, which is
// applied at once where the chunk has the head. Everything else (inputs, multi-token prediction, fillers) is as for
// language modeling.
#include "megalith/train/objectives/forward_step.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"

namespace megalith::train {

ForwardStepResult gpt_forward_step(const ForwardStepInput& step) {
  return {.output = step.chunk.forward(step.input),
          .loss = [&batch = step.batch](const at::Tensor& losses) -> LossResult {
            return {.loss = losses.sum(), .num_tokens = batch.loss_tokens};
          }};
}

bool ForwardStepObjective::sums_token_losses() const {
  using Function = ForwardStepResult (*)(const ForwardStepInput&);
  const Function* function = settings_.forward_step.target<Function>();
  return function != nullptr && *function == gpt_forward_step;
}

void ForwardStepObjective::begin(std::span<const data::MicroBatch> /*batches*/, Phase phase) {
  if (phase == Phase::kEvaluation) non_loss_data_.clear();
}

at::Tensor ForwardStepObjective::run_stage(const data::MicroBatch& batch, const model::GptModel& chunk,
                                           at::Tensor hidden, int microbatch, Phase phase) const {
  return settings_
      .forward_step({.batch = batch,
                     .chunk = chunk,
                     .input = inputs(batch, chunk, std::move(hidden), phase),
                     .microbatch = microbatch,
                     .phase = phase})
      .output;
}

MicrobatchLoss ForwardStepObjective::run_head(const data::MicroBatch& batch, const model::GptModel& chunk,
                                              at::Tensor hidden, int microbatch, Phase phase) const {
  model::ModelInput input = inputs(batch, chunk, std::move(hidden), phase);
  std::vector<at::Tensor> further;
  if (phase == Phase::kTraining) {
    request_mtp(batch, chunk, further, input);
    input.loss_grad = known_loss_grad(batch);
  }
  const ForwardStepResult result = settings_.forward_step(
      {.batch = batch, .chunk = chunk, .input = std::move(input), .microbatch = microbatch, .phase = phase});
  // A filler of an evaluation group: it takes part in the collectives of the pass, but its loss counts for nothing.
  if (batch.samples == 0) return {.sum = at::zeros({}, result.output.options().dtype(at::kFloat))};
  check<ConfigError>(static_cast<bool>(result.loss),
                     "forward_step returned no loss function for the chunk with the head");
  if (phase == Phase::kEvaluation && result.non_loss_data)
    non_loss_data_.push_back(result.non_loss_data(result.output));
  LossResult loss = result.loss(result.output);
  check<ConfigError>(loss.num_tokens || !settings_.per_token,
                     "calculate_per_token_loss needs a loss function that returns num_tokens, but this one does not");
  check<ConfigError>(loss.loss.defined() && loss.loss.dim() == 0,
                     "the loss function of forward_step did not return a scalar; return the sum or the mean of the"
                     " losses");
  return {.sum = std::move(loss.loss),
          .count = loss.num_tokens.value_or(1),  // 1: a mean counts as one item
          .metrics = std::move(loss.report),
          .attached = mtp_losses(chunk.config(), further, batch)};
}

}  // namespace megalith::train
