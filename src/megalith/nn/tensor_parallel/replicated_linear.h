// A linear layer y = x Wᵀ + b whose weight is replicated on every tensor-parallel rank: for projections too small to
// split.
//
// Legend: t tokens, i inputs, o outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"

namespace megalith::nn {

// Each rank works on the tokens that it holds. Without sequence parallelism these are all tokens: every rank computes
// the same, and the consumer of the outputs must pass back whole gradients. With sequence parallelism they are its
// share: gradients of the parameters are partial, and are summed over tp at the end of the step.
class ReplicatedLinear {
 public:
  // `out` lists the fused tensors in the order of their rows, as in ColumnParallelLinear.
  ReplicatedLinear(const ParameterScope& scope, const std::string& name, int64_t in, const std::vector<OutputPart>& out,
                   bool bias, Init init, const TensorParallel& tp);

  // [t, i] -> [t, o], or both with t/tp rows. There is no collective in either direction.
  at::Tensor forward(const at::Tensor& x) const;

 private:
  std::optional<ops::Fp8Recipe> fp8_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace megalith::nn
