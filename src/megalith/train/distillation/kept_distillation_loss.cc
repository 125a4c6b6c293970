// Classes are few and the same on every rank, so that the divergence itself needs no collective: only the logits of the
// kept tokens and the sum over all others are brought together.
#include "megalith/train/distillation/kept_distillation_loss.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/train/distillation/divergence_internal.h"
#include "megalith/train/distillation/kept_columns_internal.h"

namespace megalith::train {

namespace {

// Returns log(1 - exp(x)) for x <= 0.
at::Tensor log_of_rest(const at::Tensor& x) { return at::expm1(x).neg_().log_(); }

// Returns log p of `m` classes, and with a tail that of the tail as column m. Log-probabilities that were stored in 16
// bits are scaled to the sum that they must have: 1 less the tail, which is always stored in fp32.
at::Tensor teacher_classes(const KeptClasses& teacher, int64_t m, bool tail, const DistillationSettings& how,
                           at::ScalarType type) {
  const at::Tensor scaled = teacher.log_probs.to(type) / how.temperature;  // [c, k]
  if (!tail) return at::log_softmax(scaled.narrow(1, 0, m), 1);
  at::Tensor all = at::log_softmax(scaled, 1);
  if (teacher.log_tail.defined()) {
    const at::Tensor beyond = teacher.log_tail.to(type).unsqueeze(1);  // [c, 1]
    all = at::cat({all + log_of_rest(beyond), beyond}, 1);
  }
  const int64_t others = all.size(1) - m;
  return others == 1 ? all : at::cat({all.narrow(1, 0, m), at::logsumexp(all.narrow(1, m, others), 1, true)}, 1);
}

// Returns the `k` largest numbers of each row and their token ids, over this rank's columns; -inf and -1 where it has
// fewer.
std::pair<at::Tensor, at::Tensor> largest_here(const at::Tensor& columns, const ops::VocabRange& range, int64_t k) {
  const int64_t held = std::min(k, columns.size(1));
  at::Tensor values = at::full({columns.size(0), k}, -std::numeric_limits<double>::infinity(), columns.options());
  at::Tensor ids = at::full({columns.size(0), k}, -1, columns.options().dtype(at::kLong));
  if (held == 0) return {values, ids};
  const auto [best, index] = columns.topk(held, 1);
  values.narrow(1, 0, held).copy_(best);
  ids.narrow(1, 0, held).copy_(index + range.begin);
  return {values, ids};
}

// Joins the candidates of all ranks, [c, k] each, and returns the ids of the k best. Ids are exact in fp64.
at::Tensor best_ids(const at::Tensor& values, const at::Tensor& ids, const comm::Group& tp) {
  const int64_t c = values.size(0), k = values.size(1);
  if (tp.size() == 1) return ids;
  const at::Tensor own = at::stack({values.to(at::kDouble), ids.to(at::kDouble)});  // [2, c, k]
  const at::Tensor all = at::empty({tp.size() * 2, c, k}, own.options());
  tp.all_gather(all, own, "a teacher's likeliest tokens");
  const at::Tensor candidates = all.view({tp.size(), 2, c, k}).permute({1, 2, 0, 3}).reshape({2, c, -1});
  const at::Tensor winners = std::get<1>(candidates[0].topk(k, 1));
  return candidates[1].gather(1, winners).to(at::kLong);
}

}  // namespace

DistillationTerms kept_distillation_terms_(const at::Tensor& student, const KeptClasses& teacher,
                                           const at::Tensor& labels, const ops::VocabRange& range,
                                           const comm::Group& tp, const ops::CrossEntropyOptions& lm,
                                           const DistillationSettings& how, std::optional<double> grad) {
  const at::NoGradGuard no_grad;
  const int64_t k = teacher.ids.size(1);
  check(student.size(0) == teacher.ids.size(0) && teacher.ids.sizes() == teacher.log_probs.sizes() && k <= range.total,
        "a teacher's files give {} tokens and {} classes for {} tokens of a vocabulary of {}", teacher.ids.size(0), k,
        student.size(0), range.total);
  check(!how.tail || k == range.total || teacher.log_tail.defined(), "a loss with a tail needs the teacher's tail");
  const int64_t m = std::min(k, how.classes.value_or(k));
  const bool tail = how.tail && m < range.total;
  const at::Tensor columns = scaled_columns(student, range, how.temperature);
  const KeptColumns kept(columns, teacher.ids.narrow(1, 0, m), range);
  at::Tensor classes = kept.kept(tp), log_sum;
  if (tail) {
    log_sum = kept.log_sum_of_rest(tp);
    classes = at::cat({classes, log_sum.unsqueeze(1)}, 1);
  }
  const LogProbs log{at::log_softmax(classes, 1), teacher_classes(teacher, m, tail, how, columns.scalar_type())};
  Divergence kd = divergence_of(log, how, nullptr, grad.has_value());
  if (grad) kd.grads = kept.grads(kd.grads.narrow(1, 0, m), tail ? kd.grads.select(1, m) : at::Tensor(), log_sum);
  return combined_terms_(student, labels, range, tp, lm, how, grad, std::move(kd));
}

LikeliestTokens likeliest_tokens(const at::Tensor& logits, const ops::VocabRange& range, const comm::Group& tp,
                                 int64_t k, const std::vector<double>& temperatures) {
  const at::NoGradGuard no_grad;
  check(k >= 1 && k <= range.total, "{} of {} tokens cannot be kept", k, range.total);
  const at::Tensor columns = scaled_columns(logits, range, 1);
  const auto [values, ids] = largest_here(columns, range, k);
  LikeliestTokens found{.ids = best_ids(values, ids, tp), .log_probs = {}, .log_tails = {}};
  std::vector<at::Tensor> tails;
  for (const double temperature : temperatures) {
    const KeptColumns kept(temperature == 1 ? columns : columns / temperature, found.ids, range);
    const at::Tensor of_kept = kept.kept(tp), rest = kept.log_sum_of_rest(tp);
    const at::Tensor log_sum = at::logaddexp(at::logsumexp(of_kept, 1), rest);
    tails.push_back((rest - log_sum).to(at::kFloat));
    if (temperature == 1) found.log_probs = (of_kept - log_sum.unsqueeze(1)).to(at::kFloat);
  }
  check(found.log_probs.defined(), "the tails of a teacher's files include that of temperature 1");
  found.log_tails = at::stack(tails, 1);
  return found;
}

}  // namespace megalith::train
