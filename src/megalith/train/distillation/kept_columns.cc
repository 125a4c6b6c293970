#include <ATen/ATen.h>

#include <limits>

#include "megalith/train/distillation/divergence_internal.h"
#include "megalith/train/distillation/kept_columns_internal.h"

namespace megalith::train {

namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

}  // namespace

KeptColumns::KeptColumns(const at::Tensor& columns, const at::Tensor& ids, const ops::VocabRange& range)
    : extended_(at::cat({columns, columns.new_zeros({columns.size(0), 1})}, 1)) {
  const at::Tensor mine = ids.ge(range.begin).logical_and_(ids.lt(range.end));
  index_ = at::where(mine, ids - range.begin, at::scalar_tensor(columns.size(1), ids.options()));
}

// A rank without a token adds the 0 of its spare column.
at::Tensor KeptColumns::kept(const comm::Group& tp) const {
  const at::Tensor logits = extended_.gather(1, index_);
  tp.all_reduce(logits, comm::ReduceOp::kSum, "logits of kept tokens");
  return logits;
}

at::Tensor KeptColumns::log_sum_of_rest(const comm::Group& tp) const {
  const at::Tensor rest = extended_.scatter(1, index_, kMinusInfinity).narrow(1, 0, extended_.size(1) - 1);
  const at::Tensor maxima = row_maxima(rest);
  tp.all_reduce(maxima, comm::ReduceOp::kMax, "maxima of the other tokens");
  // Without any other token the largest is -inf, and -inf - -inf would not be a number.
  const at::Tensor base = maxima.clamp_min(std::numeric_limits<float>::lowest());
  const at::Tensor sums = (rest - base.unsqueeze(1)).exp().sum(1);
  tp.all_reduce(sums, comm::ReduceOp::kSum, "sums of the other tokens");
  return sums.log_().add_(base);
}

at::Tensor KeptColumns::grads(const at::Tensor& of_kept, const at::Tensor& of_rest, const at::Tensor& log_sum) const {
  const at::Tensor all = of_rest.defined() ? (extended_ - log_sum.unsqueeze(1)).exp_().mul_(of_rest.unsqueeze(1))
                                           : at::zeros_like(extended_);
  return all.scatter_(1, index_, of_kept).narrow(1, 0, extended_.size(1) - 1);
}

}  // namespace megalith::train
