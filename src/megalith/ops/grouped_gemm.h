// Products of groups of rows with a matrix each: the linear layers of all experts of a rank in one call.
//
// Legend: g groups, r rows, i and o columns. Rows of a group stand together, groups in order: counts[n] rows of group
// n, Σ counts = r; any of them may be 0. Without autograd: for use inside of functions with a backward of their own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace megalith::ops {

using GroupCounts = std::vector<int64_t>;

// x [r, i], w [g, o, i] -> x_n w_nᵀ of every group: [r, o].
at::Tensor grouped_mm_transposed(const at::Tensor& x, const at::Tensor& w, const GroupCounts& counts);
// x [r, o], w [g, o, i] -> x_n w_n of every group: [r, i].
at::Tensor grouped_mm(const at::Tensor& x, const at::Tensor& w, const GroupCounts& counts);
// dw_n = beta · dw_n + dy_nᵀ x_n; dy [r, o], x [r, i], dw [g, o, i] of their dtype or fp32. A group without rows keeps
// beta · dw_n: with beta 0 it becomes zero, whatever was there.
void grouped_weight_grad(const at::Tensor& dw, const at::Tensor& dy, const at::Tensor& x, const GroupCounts& counts,
                         double beta);

}  // namespace megalith::ops
