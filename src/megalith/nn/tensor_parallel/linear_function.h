// The products of linear layers, y = x Wᵀ + b, with a weight split over the tensor-parallel group, and their
// collectives.
//
// Legend: t tokens, i input columns, o output rows, tp size of the group.
//
//   layer    W on a rank   input              output             forward          backward of x
//   Column   [o/tp, i]     whole [t, i]       columns [t, o/tp]  -                all-reduce
//     SP                   shard [t/tp, i]    columns [t, o/tp]  all-gather x     reduce-scatter
//   Row      [o, i/tp]     columns [t, i/tp]  whole [t, o]       all-reduce       -
//     SP                   columns [t, i/tp]  shard [t/tp, o]    reduce-scatter   all-gather dy
//
// In backward the collective on dx (and, with sequence parallelism, the repeated all-gather of x, of which only the
// shard is kept) overlaps with the computation of the weight gradient. The products themselves are those of gemm.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/sliced_product.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"

namespace megalith::nn {

// The column layer of the table. `bias` may be nullptr. The weight may be used in several places (tied embeddings).
// With `order`, its output has the tokens in the order of these slices.
at::Tensor column_linear(const at::Tensor& x, Parameter& weight, Parameter* bias, const TensorParallel& tp,
                         const std::optional<TokenSlices>& order = {});

// The row layer: x Wᵀ summed over the ranks, plus bias, plus `residual` (of the output's shape; may be undefined). With
// `make_x`, which recomputes x from tensors that are kept anyway, x is not kept for backward. With `order`, x has the
// tokens in the order of these slices.
at::Tensor row_linear(const at::Tensor& x, Parameter& weight, Parameter* bias, const at::Tensor& residual,
                      const TensorParallel& tp, std::function<at::Tensor()> make_x = {},
                      const std::optional<TokenSlices>& order = {});

// Returns the slices in whose order `tokens` tokens of all ranks may stay between the column layer with the weight `up`
// and the row layer with `down`, if what is computed there treats every token alone: the products of both layers are
// then as fast in slices as whole. std::nullopt if either of them does not multiply in slices.
std::optional<TokenSlices> common_slices(int64_t tokens, const Parameter& up, const Parameter& down,
                                         const TensorParallel& tp);

}  // namespace megalith::nn
