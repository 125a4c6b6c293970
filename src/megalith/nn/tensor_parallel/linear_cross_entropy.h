// The output projection and its cross-entropy, as two steps or with the projection inside of the loss.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/nn/parameter.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/ops/cross_entropy.h"

namespace megalith::nn {

// Per-token losses fp32 [t] of hidden [t, h] (or [t/tp, h] with sequence parallelism) against labels [t], without the
// logits of all tokens ever existing: `chunk` tokens at a time, computed again in backward. Costs one more projection
// and saves [t, v/tp] numbers. weight [v/tp, h], padding rows behind range.end - range.begin.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, Parameter& weight, const at::Tensor& labels,
                                const ops::VocabRange& range, const TensorParallel& tp,
                                const ops::CrossEntropyOptions& options, int64_t chunk);

}  // namespace megalith::nn
