// The parameters of split linear layers. A fused weight stacks the rows of its parts as this rank holds them, while its
// ParameterParts name the global tensors and this rank's rectangle of each. For q, k, v over tp = 2:
//
//   global    q [n d, i]   k [g d, i]   v [g d, i]
//   rank 0    | q rows 0 … n d/2 - 1 | k rows 0 … g d/2 - 1 | v rows 0 … g d/2 - 1 |
//   rank 1    | the other half of q  | of k                 | of v                 |
//
// So one product computes all parts, and checkpoints still see separate tensors in any layout.
#include "megalith/nn/tensor_parallel/linear.h"

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/nn/tensor_parallel/fp8_history.h"
#include "megalith/nn/tensor_parallel/linear_function.h"

namespace megalith::nn {

namespace {

// Returns the rows of `part` that this rank holds, without padding, and their position in the fused parameter.
ParameterPart rows_of(const OutputPart& part, const char* suffix, std::vector<int64_t> shape, int64_t row,
                      const TensorParallel& tp) {
  const auto [first, count] = tp.share(part.padded_rows);
  std::vector<int64_t> offset(shape.size(), 0), extent = shape;
  // A rank at the end may hold padding only: then its rectangle is empty.
  offset[0] = std::min(first, part.rows);
  extent[0] = std::clamp<int64_t>(part.rows - first, 0, count);
  return {part.name + suffix, std::move(shape), std::move(offset), std::move(extent), row};
}

}  // namespace

ColumnParallelLinear::ColumnParallelLinear(const ParameterScope& scope, const std::string& name, int64_t in,
                                           std::vector<OutputPart> out, bool bias, Init init, TensorParallel tp,
                                           bool is_head)
    : tp_(std::move(tp)) {
  ParameterSpec weight{.name = name + ".weight",
                       .init = init,
                       .use = WeightUse::kColumn,
                       .split_over_tp = tp_.size() > 1,
                       .is_embedding_or_head = is_head};
  ParameterSpec offset{.name = name + ".bias", .split_over_tp = tp_.size() > 1};
  int64_t rows = 0;
  for (OutputPart& part : out) {
    if (part.padded_rows == 0) part.padded_rows = part.rows;
    check<ConfigError>(part.padded_rows % tp_.size() == 0,
                       "{} has {} outputs, which cannot be split over tensor_model_parallel_size {}; use a size that"
                       " divides them",
                       part.name, part.padded_rows, tp_.size());
    // Rows are counted with padding, which ranks hold like any others: `row` is the position in this rank's tensor.
    weight.parts.push_back(rows_of(part, ".weight", {part.rows, in}, rows, tp_));
    offset.parts.push_back(rows_of(part, ".bias", {part.rows}, rows, tp_));
    rows += part.padded_rows / tp_.size();
  }
  weight_ = &scope.add(std::move(weight), {rows, in});
  attach_fp8(*weight_, tp_.fp8);
  if (bias) bias_ = &scope.add(std::move(offset), {rows});
}

at::Tensor ColumnParallelLinear::forward(const at::Tensor& x, bool add_bias,
                                         const std::optional<TokenSlices>& slice_order) const {
  return column_linear(x, *weight_, add_bias ? bias_ : nullptr, tp_, slice_order);
}

RowParallelLinear::RowParallelLinear(const ParameterScope& scope, const std::string& name, int64_t in, int64_t out,
                                     bool bias, Init init, TensorParallel tp)
    : tp_(std::move(tp)) {
  check<ConfigError>(in % tp_.size() == 0,
                     "{} has {} inputs, which cannot be split over tensor_model_parallel_size {}; use a size that"
                     " divides them",
                     name, in, tp_.size());
  const auto [first, count] = tp_.share(in);
  ParameterSpec weight{.name = name + ".weight", .init = init, .use = WeightUse::kRow, .split_over_tp = tp_.size() > 1};
  weight.parts.push_back({weight.name, {out, in}, {0, first}, {out, count}, 0});
  weight_ = &scope.add(std::move(weight), {out, count});
  attach_fp8(*weight_, tp_.fp8);
  // Added once, after the sum over the ranks, and so replicated; with sequence parallelism each rank sees the gradient
  // of its own tokens only.
  if (bias)
    bias_ =
        &scope.add({.name = name + ".bias", .partial_grad_over_tp = tp_.splits_tokens(), .replica = tp_.rank()}, {out});
}

at::Tensor RowParallelLinear::forward(const at::Tensor& x, const at::Tensor& residual,
                                      std::function<at::Tensor()> make_x,
                                      const std::optional<TokenSlices>& slice_order) const {
  return row_linear(x, *weight_, bias_, residual, tp_, std::move(make_x), slice_order);
}

}  // namespace megalith::nn
