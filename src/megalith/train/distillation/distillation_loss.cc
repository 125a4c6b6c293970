// Everything is written with log-probabilities, which stay exact where probabilities vanish. A rank has some columns of
// the vocabulary: maxima and sums of exponentials of both models are reduced together, then the sums of the divergence;
// the gradient needs nothing else.
#include "megalith/train/distillation/distillation_loss.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <limits>

#include "megalith/base/error.h"

namespace megalith::train {

namespace {

using config::KdLoss;

// log q and log p, [c, v].
struct LogProbs {
  at::Tensor student, teacher;
};

// Returns this rank's valid columns of logits / T. May share memory with them, so callers
// must not write to it.
at::Tensor scaled_columns(const at::Tensor& logits, const ops::VocabRange& range, at::ScalarType type,
                          double temperature) {
  const at::Tensor columns = logits.narrow(1, 0, range.end - range.begin).to(type);
  return temperature == 1 ? columns : columns / temperature;
}

// Returns the largest number of each row; -inf on a rank without columns.
at::Tensor row_maxima(const at::Tensor& x) {
  if (x.size(1) == 0) return at::full({x.size(0)}, -std::numeric_limits<double>::infinity(), x.options());
  return x.amax(1);
}

LogProbs log_probs_of(const LogitPair& logits, const ops::VocabRange& range, const comm::Group& tp,
                      double temperature) {
  const at::ScalarType type = logits.student.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor student = scaled_columns(logits.student, range, type, temperature);
  const at::Tensor teacher = scaled_columns(logits.teacher, range, type, temperature);
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

// A divergence and its gradient with respect to log q's logits.
struct Divergence {
  at::Tensor values;  // [c]
  at::Tensor grads;   // [c, v]; undefined unless wanted
};

// KL(p ‖ q).
Divergence forward_kl(const LogProbs& log, const comm::Group& tp, bool wants_grad) {
  const at::Tensor p = log.teacher.exp();
  Divergence result{.values = p.mul(log.teacher - log.student).sum(1), .grads = {}};
  tp.all_reduce(result.values, comm::ReduceOp::kSum, "divergence");
  if (wants_grad) result.grads = log.student.exp().sub_(p);
  return result;
}

// KL(q ‖ p).
Divergence reverse_kl(const LogProbs& log, const comm::Group& tp, bool wants_grad) {
  const at::Tensor q = log.student.exp();
  at::Tensor d = log.student - log.teacher;
  Divergence result{.values = q.mul(d).sum(1), .grads = {}};
  tp.all_reduce(result.values, comm::ReduceOp::kSum, "divergence");
  if (wants_grad) result.grads = d.sub_(result.values.unsqueeze(1)).mul_(q);
  return result;
}

// β KL(p ‖ m) + (1-β) KL(q ‖ m). The derivatives of log m cancel out, which leaves those of q alone.
Divergence jensen_shannon(const LogProbs& log, double beta, const comm::Group& tp, bool wants_grad) {
  const at::Tensor log_m = at::logaddexp(log.student + std::log1p(-beta), log.teacher + std::log(beta));
  const at::Tensor of_teacher = log.teacher.exp().mul_(log.teacher - log_m).sum(1);
  const at::Tensor q = log.student.exp();
  at::Tensor d = log.student - log_m;
  const at::Tensor parts = at::stack({of_teacher, q.mul(d).sum(1)});  // [2, c]
  tp.all_reduce(parts, comm::ReduceOp::kSum, "divergence");
  Divergence result{.values = parts[0] * beta + parts[1] * (1 - beta), .grads = {}};
  if (wants_grad) result.grads = d.sub_(parts[1].unsqueeze(1)).mul_(q).mul_(1 - beta);
  return result;
}

Divergence divergence_of(const LogProbs& log, const DistillationSettings& how, const comm::Group& tp, bool wants_grad) {
  const bool mixes = how.loss == KdLoss::kJsd;
  if (how.loss == KdLoss::kForwardKl || (mixes && how.beta == 0)) return forward_kl(log, tp, wants_grad);
  if (how.loss == KdLoss::kReverseKl || (mixes && how.beta == 1)) return reverse_kl(log, tp, wants_grad);
  return jensen_shannon(log, how.beta, tp, wants_grad);
}

// Returns the cross-entropy; with `grad`, leaves its part of the gradient in the logits.
at::Tensor label_losses_(const at::Tensor& logits, const at::Tensor& labels, const ops::VocabRange& range,
                         const comm::Group& tp, const ops::CrossEntropyOptions& options, double share,
                         std::optional<double> grad) {
  if (grad && share > 0) return ops::cross_entropy_with_grad_(logits, labels, range, tp, options, *grad * share);
  const at::Tensor losses = ops::cross_entropy_forward(logits, labels, range, tp, options).loss;
  if (grad) logits.zero_();
  return losses;
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
  const at::Tensor ignored = labels == lm.ignore_index;  // [c]
  // Before the cross-entropy, which writes into the logits.
  Divergence kd = divergence_of(log_probs_of(logits, range, tp, how.temperature), how, tp, grad.has_value());
  kd.values.masked_fill_(ignored, 0);
  const at::Tensor losses = label_losses_(logits.student, labels, range, tp, lm, 1 - how.ratio, grad);
  if (grad) {
    kd.grads.masked_fill_(ignored.unsqueeze(1), 0).mul_(*grad * how.ratio / how.temperature);
    logits.student.narrow(1, 0, columns).add_(kd.grads);
  }
  return {.total = losses * (1 - how.ratio) + kd.values * how.ratio, .kd = kd.values, .lm = losses};
}

}  // namespace megalith::train
