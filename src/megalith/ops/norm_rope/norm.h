// RMSNorm and LayerNorm over the last dimension, with statistics in fp32 and hand-written backward passes.
//
// Legend: t tokens, h hidden size.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <utility>

#include "megalith/ops/kernel/grad_target.h"

namespace megalith::ops {

// The two kinds of norm.
enum class NormKind {
  kRms,   // y = x / sqrt(mean(x²) + epsilon) · w
  kLayer  // y = (x - mean(x)) / sqrt(variance(x) + epsilon) · w + b
};

// Parameters of one norm; weight and bias may require gradients.
struct NormWeights {
  NormKind kind = NormKind::kRms;
  at::Tensor weight;           // [h]
  at::Tensor bias;             // [h]; undefined if the norm has none, as RMSNorm never has
  double epsilon = 1e-5;       // added to the variance (or the mean square)
  bool zero_centered = false;  // the weight is stored as w - 1: y = x̂ (1 + w)
  // Buffers that backward adds the gradients to; a default target means that autograd returns them.
  GradTarget weight_target = {};
  GradTarget bias_target = {};
  // Type of norm(x); nullopt means that of x. bf16 and fp16 are for the branches of a residual stream in fp32.
  std::optional<at::ScalarType> out = {};
};

// Returns norm(x), [t, h] -> [t, h], in weights.out or the dtype of x. x may be any tensor whose last dimension is h.
// Saves x and one float per row (two for LayerNorm) for backward, never the normalized rows.
// Throws InternalError if weight or bias do not have h elements.
at::Tensor norm(const at::Tensor& x, const NormWeights& weights);

// Returns {x, norm(x)}: the fork at the start of a residual branch. The first output equals x; taking it from here
// lets backward add the gradients of the residual path and of the norm in one pass over memory.
std::pair<at::Tensor, at::Tensor> norm_fork(const at::Tensor& x, const NormWeights& weights);

// Returns {r, norm(r)} with r = x + delta, in one pass over memory in each direction: the end of one branch and the
// start of the next. r has the dtype of x; delta may have that of norm(r). x and delta get the same gradient tensor,
// or, in two dtypes, one each.
std::pair<at::Tensor, at::Tensor> add_norm(const at::Tensor& x, const at::Tensor& delta, const NormWeights& weights);

}  // namespace megalith::ops
