// RMSNorm and LayerNorm over the last dimension, statistics in fp32, with a backward of their own.
//
// Legend: t tokens, h hidden size.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "megalith/ops/kernel/grad_target.h"

namespace megalith::ops {

enum class NormKind { kRms, kLayer };

// The parameters of one norm, as tensors that may require gradients.
struct NormWeights {
  NormKind kind = NormKind::kRms;
  at::Tensor weight;           // [h]
  at::Tensor bias;             // [h]; undefined: none. RMSNorm has none
  double epsilon = 1e-5;       // added to the variance (or the mean square)
  bool zero_centered = false;  // the weight is stored as w - 1: y = x̂ (1 + w)
  GradTarget weight_target = {};
  GradTarget bias_target = {};
};

// y = norm(x): [t, h] -> [t, h], in the dtype of x. x may be any tensor whose last dimension is h.
// Saves x and one or two floats a row; never the normalised rows.
at::Tensor norm(const at::Tensor& x, const NormWeights& weights);

// The fork at the head of a residual branch: returns {x, norm(x)}. In value the first is x; going through here lets
// backward add the gradient of the residual path and that of the norm in one pass over memory.
std::pair<at::Tensor, at::Tensor> norm_fork(const at::Tensor& x, const NormWeights& weights);

// residual + norm: r = x + delta, returns {r, norm(r)}, one pass over memory in each direction.
std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x, const at::Tensor& delta, const NormWeights& weights);

}  // namespace megalith::ops
