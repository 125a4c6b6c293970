// Gradients that are sums over tokens: of a bias, and of the rows of an embedding.
//
// Legend: t tokens, h columns.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/ops/kernel/grad_target.h"

namespace megalith::ops {

// Returns the gradient of a bias that was added to rows: dy [t, h] -> Σ over t, [h], in the dtype of dy. Returns
// undefined if the sum went to `target`.
at::Tensor bias_grad(const at::Tensor& dy, const GradTarget& target = {});

// Adds dy[i] to sums[rows[i]] for every token i: sums [v, h], contiguous; rows int64 [t], all in [0, v); dy [t, h]. On
// CUDA the order of additions is fixed only with at::globalContext().deterministicAlgorithms() (full_determinism).
void add_to_rows_(const at::Tensor& sums, const at::Tensor& rows, const at::Tensor& dy);

}  // namespace megalith::ops
