// Everything is written with log-probabilities, which stay exact where probabilities vanish.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "megalith/train/distillation/divergence_internal.h"

namespace megalith::train {

namespace {

using config::KdLoss;

void add_over(const comm::Group* tp, const at::Tensor& values) {
  if (tp != nullptr) tp->all_reduce(values, comm::ReduceOp::kSum, "divergence");
}

// KL(p ‖ q).
Divergence forward_kl(const LogProbs& log, const comm::Group* tp, bool wants_grad) {
  const at::Tensor p = log.teacher.exp();
  Divergence result{.values = p.mul(log.teacher - log.student).sum(1), .grads = {}};
  add_over(tp, result.values);
  if (wants_grad) result.grads = log.student.exp().sub_(p);
  return result;
}

// KL(q ‖ p).
Divergence reverse_kl(const LogProbs& log, const comm::Group* tp, bool wants_grad) {
  const at::Tensor q = log.student.exp();
  at::Tensor d = log.student - log.teacher;
  Divergence result{.values = q.mul(d).sum(1), .grads = {}};
  add_over(tp, result.values);
  if (wants_grad) result.grads = d.sub_(result.values.unsqueeze(1)).mul_(q);
  return result;
}

// β KL(p ‖ m) + (1-β) KL(q ‖ m). The derivatives of log m cancel out, which leaves those of q alone.
Divergence jensen_shannon(const LogProbs& log, double beta, const comm::Group* tp, bool wants_grad) {
  const at::Tensor log_m = at::logaddexp(log.student + std::log1p(-beta), log.teacher + std::log(beta));
  const at::Tensor of_teacher = log.teacher.exp().mul_(log.teacher - log_m).sum(1);
  const at::Tensor q = log.student.exp();
  at::Tensor d = log.student - log_m;
  const at::Tensor parts = at::stack({of_teacher, q.mul(d).sum(1)});  // [2, c]
  add_over(tp, parts);
  Divergence result{.values = parts[0] * beta + parts[1] * (1 - beta), .grads = {}};
  if (wants_grad) result.grads = d.sub_(parts[1].unsqueeze(1)).mul_(q).mul_(1 - beta);
  return result;
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

Divergence divergence_of(const LogProbs& log, const DistillationSettings& how, const comm::Group* tp, bool wants_grad) {
  const bool mixes = how.loss == KdLoss::kJsd;
  if (how.loss == KdLoss::kForwardKl || (mixes && how.beta == 0)) return forward_kl(log, tp, wants_grad);
  if (how.loss == KdLoss::kReverseKl || (mixes && how.beta == 1)) return reverse_kl(log, tp, wants_grad);
  return jensen_shannon(log, how.beta, tp, wants_grad);
}

at::Tensor scaled_columns(const at::Tensor& logits, const ops::VocabRange& range, double temperature) {
  const at::ScalarType type = logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor columns = logits.narrow(1, 0, range.end - range.begin).to(type);
  return temperature == 1 ? columns : columns / temperature;
}

at::Tensor row_maxima(const at::Tensor& x) {
  if (x.size(1) == 0) return at::full({x.size(0)}, -std::numeric_limits<double>::infinity(), x.options());
  return x.amax(1);
}

// Tokens without a label may hold anything, NaN as well, so they are replaced and not multiplied by 0.
DistillationTerms combined_terms_(const at::Tensor& logits, const at::Tensor& labels, const ops::VocabRange& range,
                                  const comm::Group& tp, const ops::CrossEntropyOptions& lm,
                                  const DistillationSettings& how, std::optional<double> grad, Divergence kd) {
  const at::Tensor ignored = labels == lm.ignore_index;  // [c]
  kd.values.masked_fill_(ignored, 0);
  const at::Tensor losses = label_losses_(logits, labels, range, tp, lm, 1 - how.ratio, grad);
  if (grad) {
    kd.grads.masked_fill_(ignored.unsqueeze(1), 0).mul_(*grad * how.ratio / how.temperature);
    logits.narrow(1, 0, range.end - range.begin).add_(kd.grads);
  }
  return {.total = losses * (1 - how.ratio) + kd.values * how.ratio, .kd = kd.values, .lm = losses};
}

}  // namespace megalith::train
