// The output projection and its cross-entropy, as two steps or with the projection inside of the loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/ops/loss/cross_entropy.h"

namespace megalith::nn {

// Per-token losses fp32 [t] of hidden [t, h] (or [t/tp, h] with sequence parallelism) against labels [t], without the
// logits of all tokens ever existing: `chunk` tokens at a time. weight [v/tp, h], padding rows behind range.end -
// range.begin.
//
// `grad`: what backward will bring as the gradient of every loss, where the caller knows it. The gradients of hidden
// and weight are then made here (the weight's goes to its main_grad at once, or waits beside hidden's), and the
// projection is computed once; any other gradient in backward would be wrong (InternalError, on CPU). Without `grad`
// the logits of each chunk are computed again in backward: one more projection.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, Parameter& weight, const at::Tensor& labels,
                                const ops::VocabRange& range, const TensorParallel& tp,
                                const ops::CrossEntropyOptions& options, int64_t chunk,
                                std::optional<double> grad = std::nullopt);

}  // namespace megalith::nn
