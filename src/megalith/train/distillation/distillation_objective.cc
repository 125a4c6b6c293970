// A step in three parts: begin() runs the teacher over all micro-batches, the pipeline runs the student, and on the
// last stage the student's head hands its input and weight to a loss that projects both models slice by slice. The
// teacher runs first because both models use the same pipeline, one schedule at a time.
#include "megalith/train/distillation/distillation_objective.h"

#include <ATen/ATen.h>

#include <utility>

#include "megalith/base/error.h"
#include "megalith/nn/tensor_parallel/linear_loss.h"
#include "megalith/train/distillation/distillation_loss.h"

namespace megalith::train {

namespace {

// Sums over the labelled tokens of a micro-batch on this rank, scalars.
struct LossSums {
  at::Tensor kd, lm;
};

void check_student(const model::GptModel& chunk, const ops::VocabRange& teacher) {
  check<ConfigError>(chunk.head()->takes_loss(),
                     "{} models have a head of their own, but a teacher's distributions are those of tokens",
                     chunk.config().family);
  const ops::VocabRange mine = chunk.vocab_range();
  check(mine.begin == teacher.begin && mine.end == teacher.end && mine.total == teacher.total,
        "the teacher has ids {} to {} of {} on this rank, and the student {} to {} of {}", teacher.begin, teacher.end,
        teacher.total, mine.begin, mine.end, mine.total);
}

}  // namespace

DistillationObjective::DistillationObjective(const DistillationSettings& how, std::unique_ptr<TeacherModel> teacher)
    : how_(how), teacher_(std::move(teacher)) {}

std::vector<std::string> DistillationObjective::metrics_keys(Phase /*phase*/) const { return {"kd_loss", "lm_loss"}; }

void DistillationObjective::begin(std::span<const data::MicroBatch> batches, Phase /*phase*/) {
  teacher_->run(batches);
}

MicrobatchLoss DistillationObjective::run_head(const data::MicroBatch& batch, const model::GptModel& chunk,
                                               at::Tensor hidden, int microbatch, Phase phase) const {
  check_student(chunk, teacher_->vocab_range());
  model::ModelInput input = inputs(batch, chunk, std::move(hidden), phase);
  std::vector<at::Tensor> further;
  if (phase == Phase::kTraining) request_mtp(batch, chunk, further, input);
  const std::optional<double> grad = phase == Phase::kTraining ? known_loss_grad(batch) : std::nullopt;
  check(phase != Phase::kTraining || grad || batch.samples == 0,
        "distillation needs the gradient of its loss before the forward pass; train with a MicrobatchRunner");
  const at::Tensor taught = teacher_->hidden(microbatch);  // [t, h of the teacher]
  const at::Tensor targets = input.targets;
  const model::ModelOptions& options = chunk.options();
  const nn::TensorParallel& tp = chunk.tensor_parallel();
  LossSums sums{at::zeros({}, taught.options().dtype(at::kFloat)), at::zeros({}, taught.options().dtype(at::kFloat))};
  const nn::SliceLoss slice_loss = [&](const at::Tensor& logits, int64_t first, bool wants_grad) {
    const int64_t count = logits.size(0);
    const DistillationTerms terms = distillation_terms_(
        {logits, teacher_->logits(taught.narrow(0, first, count))}, targets.narrow(0, first, count),
        chunk.vocab_range(), tp.group, options.loss, how_, wants_grad ? std::optional(grad.value_or(1)) : std::nullopt);
    sums.kd.add_(terms.kd.sum());
    sums.lm.add_(terms.lm.sum());
    return terms.total;
  };
  const model::HeadLoss head_loss = [&](const at::Tensor& y, nn::Parameter& weight) {
    return nn::linear_loss(y,
                           {.weight = &weight,
                            .tp = tp,
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
