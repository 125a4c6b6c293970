// A linear layer whose weight is whole on every tensor-parallel rank, y = x Wᵀ + b: for projections too small to split.
//
// Legend: t tokens, i inputs, o outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"

namespace megalith::nn {

// A rank works on the tokens that it has: all of them, and then every rank computes the same and whoever uses the
// outputs sees to it that their gradients are whole; or, with sequence parallelism, its share of them, and then the
// parameters' gradients are partial and are summed over tp at the end of the step.
class ReplicatedLinear {
 public:
  // `out`: tensors one behind the other, as in ColumnParallelLinear.
  ReplicatedLinear(const ParameterScope& scope, const std::string& name, int64_t in, const std::vector<OutputPart>& out,
                   bool bias, Init init, const TensorParallel& tp);

  // [t, i] -> [t, o], or both with t/tp rows. No collective in either direction.
  at::Tensor forward(const at::Tensor& x) const;

 private:
  Parameter* weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace megalith::nn
