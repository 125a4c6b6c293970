// Gradients of parameters that are sums over tokens: of a bias, of the rows of an embedding.
//
// Legend: t tokens, h columns.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/ops/kernel/grad_target.h"

namespace megalith::ops {

// The gradient of a bias that was added to rows: dy [t, h] -> Σ over t, [h], in the dtype of dy. Undefined when the sum
// went to `target`.
at::Tensor bias_grad(const at::Tensor& dy, const GradTarget& target = {});

// sums[rows[i]] += dy[i] for every token. sums [v, h], contiguous; rows int64 [t], all in [0, v); dy [t, h]. On CUDA
// the order of the additions is fixed only with at::globalContext().deterministicAlgorithms() (full_determinism).
void add_to_rows_(const at::Tensor& sums, const at::Tensor& rows, const at::Tensor& dy);

}  // namespace megalith::ops
