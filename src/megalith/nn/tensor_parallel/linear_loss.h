// An output projection with a loss of its tokens, some tokens at a time, so that the logits of all tokens never exist
// at once. The loss itself comes from the caller: cross-entropy (linear_cross_entropy.h), or a comparison with the
// logits of another model (train/distillation).
//
// Legend: t tokens, c tokens of a slice, h hidden, v padded vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/ops/gemm/fp8.h"

namespace megalith::nn {

// Returns the losses, fp32 [c], of the tokens first … first + c - 1 from this rank's columns of their logits [c, v/tp],
// whose rows are contiguous. With `wants_grad`, also overwrites the logits by LinearLoss::grad · d(Σ losses)/d(logits),
// where padding columns get 0. Called without autograd, in the order of the tokens; may use collectives over tp.
using SliceLoss = std::function<at::Tensor(const at::Tensor& logits, int64_t first, bool wants_grad)>;

// A projection and its loss.
struct LinearLoss {
  Parameter* weight = nullptr;  // [v/tp, h]; outlives the graph
  TensorParallel tp;
  int64_t chunk = 0;  // tokens of a slice, at least 1
  // The gradient that backward will pass for every loss. Any other would be wrong (InternalError on the CPU).
  double grad = 1;
  std::optional<double> largest{};      // the largest magnitude of a logit's gradient, if it is known
  std::optional<ops::Fp8Recipe> fp8{};  // products in fp8, as in linear_cross_entropy
};

// Returns the losses fp32 [t] of hidden [t, h] (or [t/tp, h] with sequence parallelism), equal on all ranks of tp if
// those of `loss` are. Where gradients are enabled, forward computes those of hidden and weight at once and keeps them;
// the weight's goes to main_grad. A weight with a low-rank update takes the layers' own way instead: then the logits of
// all tokens exist once, and only the loss works in slices. All ranks of tp call it together.
at::Tensor linear_loss(const at::Tensor& hidden, const LinearLoss& how, const SliceLoss& loss);

}  // namespace megalith::nn
