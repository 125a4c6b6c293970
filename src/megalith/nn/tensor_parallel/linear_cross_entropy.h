// The output projection fused with its cross-entropy loss.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/ops/loss/cross_entropy.h"

namespace megalith::nn {

// Returns per-token losses fp32 [t] of hidden [t, h] (or [t/tp, h] with sequence parallelism) against labels [t]. Works
// on `chunk` tokens at a time, so that the logits of all tokens never exist at once. weight is [v/tp, h]; its rows
// after the first range.end - range.begin are padding.
//
// `grad` is the gradient that backward will pass for every loss, if the caller knows it. Then forward already computes
// the gradients of hidden and weight (the latter goes to main_grad at once, or is kept along with that of hidden), and
// the projection is computed only once. Any other gradient in backward would be wrong (InternalError on the CPU).
// Without `grad`, backward recomputes the logits of each chunk, which costs one more projection.
//
// With `fp8` the three products are in fp8, where the weight's sizes on this rank are multiples of 16: each tensor has
// one scale, found from the tensor itself, whatever the recipe says of scales.
//
// While a queue that keeps logits records (weight_grad_queue.h), the products of the weight's gradient are left in it,
// each with the logits' gradient of its chunk.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, Parameter& weight, const at::Tensor& labels,
                                const ops::VocabRange& range, const TensorParallel& tp,
                                const ops::CrossEntropyOptions& options, int64_t chunk,
                                std::optional<double> grad = std::nullopt,
                                const std::optional<ops::Fp8Recipe>& fp8 = std::nullopt);

}  // namespace megalith::nn
