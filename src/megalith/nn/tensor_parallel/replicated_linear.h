// A linear layer y = x Wᵀ + b whose weight is replicated on every tensor-parallel rank: for projections too small to
// split.
//
// Legend: t tokens, i inputs, o outputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
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

  // [t, i] -> [t, o], or both with t/tp rows; plus `residual` of the output's shape, if it is defined. There is no
  // collective in either direction. With `make_x`, which recomputes x from tensors that are kept anyway, x is not kept
  // for backward.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual = {},
                     std::function<at::Tensor()> make_x = {}) const;
  // The product alone: the caller adds the bias, fused with its next operation.
  at::Tensor forward_without_bias(const at::Tensor& x) const;

  Parameter& weight() const { return *weight_; }
  Parameter* bias() const { return bias_; }  // [o]; nullptr if there is none

 private:
  at::Tensor product(const at::Tensor& x, Parameter* bias, const at::Tensor& residual,
                     std::function<at::Tensor()> make_x) const;

  std::optional<ops::Fp8Recipe> fp8_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace megalith::nn
