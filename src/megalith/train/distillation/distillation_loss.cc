// A rank has some columns of the vocabulary: maxima and sums of exponentials of both models are reduced together, then
// the sums of the divergence; the gradient needs nothing else.
#include "megalith/train/distillation/distillation_loss.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <utility>

#include "megalith/base/error.h"
#include "megalith/train/distillation/divergence_internal.h"

namespace megalith::train {

namespace {

LogProbs log_probs_of(const LogitPair& logits, const ops::VocabRange& range, const comm::Group& tp,
                      double temperature) {
  const at::Tensor student = scaled_columns(logits.student, range, temperature);
  const at::Tensor teacher = scaled_columns(logits.teacher, range, temperature).to(student.scalar_type());
  const at::Tensor maxima = at::stack({row_maxima(student), row_maxima(teacher)});  // [2, c]
  tp.all_reduce(maxima, comm::ReduceOp::kMax, "distillation maxima");
  LogProbs centered{student - maxima[0].unsqueeze(1), teacher - maxima[1].unsqueeze(1)};
  const at::Tensor sums = at::stack({centered.student.exp().sum(1), centered.teacher.exp().sum(1)});
  tp.all_reduce(sums, comm::ReduceOp::kSum, "distillation sums");
  const at::Tensor log_sums = sums.log_();
  centered.student.sub_(log_sums[0].unsqueeze(1));
  centered.teacher.sub_(log_sums[1].unsqueeze(1));
  return centered;
}

}  // namespace

DistillationTerms distillation_terms_(const LogitPair& logits, const at::Tensor& labels, const ops::VocabRange& range,
                                      const comm::Group& tp, const ops::CrossEntropyOptions& lm,
                                      const DistillationSettings& how, std::optional<double> grad) {
  const at::NoGradGuard no_grad;
  const int64_t columns = range.end - range.begin;
  check(logits.student.size(0) == logits.teacher.size(0) && logits.teacher.size(1) >= columns,
        "the teacher has logits of {} tokens and {} columns for {} tokens and {} columns of the student",
        logits.teacher.size(0), logits.teacher.size(1), logits.student.size(0), columns);
  // Before the cross-entropy, which writes into the logits.
  Divergence kd = divergence_of(log_probs_of(logits, range, tp, how.temperature), how, &tp, grad.has_value());
  return combined_terms_(logits.student, labels, range, tp, lm, how, grad, std::move(kd));
}

}  // namespace megalith::train
