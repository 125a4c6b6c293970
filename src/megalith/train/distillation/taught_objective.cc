// On the last stage the student's head hands its input and weight to a loss that projects some tokens at a time.
#include "megalith/train/distillation/taught_objective.h"

#include <ATen/ATen.h>

#include <utility>

#include "megalith/base/error.h"
#include "megalith/nn/tensor_parallel/linear_loss.h"

namespace megalith::train {

namespace {

// Sums over the labelled tokens of a micro-batch on this rank, scalars.
struct LossSums {
  at::Tensor kd, lm;
};

}  // namespace

std::vector<std::string> TaughtObjective::metrics_keys(Phase /*phase*/) const { return {"kd_loss", "lm_loss"}; }

MicrobatchLoss TaughtObjective::run_head(const data::MicroBatch& batch, const model::GptModel& chunk, at::Tensor hidden,
                                         int microbatch, Phase phase) const {
  check<ConfigError>(chunk.head()->takes_loss(),
                     "{} models have a head of their own, but a teacher's distributions are those of tokens",
                     chunk.config().family);
  const SliceTerms terms_of_slice = terms_of(batch, chunk, microbatch);
  model::ModelInput input = inputs(batch, chunk, std::move(hidden), phase);
  std::vector<at::Tensor> further;
  if (phase == Phase::kTraining) request_mtp(batch, chunk, further, input);
  const std::optional<double> grad = phase == Phase::kTraining ? known_loss_grad(batch) : std::nullopt;
  check(phase != Phase::kTraining || grad || batch.samples == 0,
        "distillation needs the gradient of its loss before the forward pass; train with a MicrobatchRunner");
  const at::Tensor targets = input.targets;
  const model::ModelOptions& options = chunk.options();
  const auto number = at::TensorOptions().device(targets.device()).dtype(at::kFloat);
  LossSums sums{at::zeros({}, number), at::zeros({}, number)};
  const nn::SliceLoss slice_loss = [&](const at::Tensor& logits, int64_t first, bool wants_grad) {
    const DistillationTerms terms = terms_of_slice(logits, targets.narrow(0, first, logits.size(0)), first,
                                                   wants_grad ? std::optional(grad.value_or(1)) : std::nullopt);
    sums.kd.add_(terms.kd.sum());
    sums.lm.add_(terms.lm.sum());
    return terms.total;
  };
  const model::HeadLoss head_loss = [&](const at::Tensor& y, nn::Parameter& weight) {
    return nn::linear_loss(y,
                           {.weight = &weight,
                            .tp = chunk.tensor_parallel(),
                            .chunk = kSliceTokens,
                            .grad = grad.value_or(1),
                            .fp8 = options.fp8_head ? options.fp8 : std::nullopt},
                           slice_loss);
  };
  input.head_loss = &head_loss;
  const at::Tensor token_losses = chunk.forward(input);
  if (batch.samples == 0) return {.sum = at::zeros({}, token_losses.options())};
  const auto labelled = static_cast<double>(batch.loss_tokens);
  return {.sum = token_losses.sum(),
          .count = batch.loss_tokens,
          .metrics = {{"kd_loss", sums.kd, labelled}, {"lm_loss", sums.lm, labelled}},
          .attached = mtp_losses(chunk.config(), further, batch)};
}

}  // namespace megalith::train
