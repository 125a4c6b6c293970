// Linear layers whose weight is split over the tensor-parallel group: its parameters, and how they are split.
// linear_function.h says what they compute, and what they send between the ranks.
//
// Legend: i input columns, o output rows, tp size of the group.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"

namespace megalith::nn {

// One of the outputs that a fused linear layer computes: rows of its weight, split over tp on their own.
struct OutputPart {
  std::string name;         // "q": the tensors are q.weight and q.bias
  int64_t rows = 0;         // over all ranks
  int64_t padded_rows = 0;  // a multiple of tp; 0: rows. The rows behind are zero and no part of the model
};

class ColumnParallelLinear {
 public:
  // `name`: of the fused parameter ("qkv.weight"). `is_head`: it makes the logits. Throws ConfigError when a part's
  // rows do not divide by tp.
  ColumnParallelLinear(const ParameterScope& scope, const std::string& name, int64_t in, std::vector<OutputPart> out,
                       bool bias, Init init, TensorParallel tp, bool is_head = false);

  // With `add_bias` false the bias is left to whoever fuses it with what comes next.
  at::Tensor forward(const at::Tensor& x, bool add_bias = true) const;
  Parameter& weight() const { return *weight_; }
  Parameter* bias() const { return bias_; }  // [o/tp]; nullptr: none

 private:
  TensorParallel tp_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
};

class RowParallelLinear {
 public:
  RowParallelLinear(const ParameterScope& scope, const std::string& name, int64_t in, int64_t out, bool bias, Init init,
                    TensorParallel tp);

  // See row_linear.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual = {},
                     std::function<at::Tensor()> make_x = {}) const;
  Parameter& weight() const { return *weight_; }

 private:
  TensorParallel tp_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace megalith::nn
