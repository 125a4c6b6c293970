// Linear layers whose weight is split over the tensor-parallel group: their parameters, and how these are split.
// linear_function.h explains the computation and its collectives.
//
// Legend: i input columns, o output rows, tp size of the group.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/sliced_product.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"

namespace megalith::nn {

// One output of a fused linear layer: a range of rows of its weight, split over tp separately from the others.
struct OutputPart {
  std::string name;         // "q": the tensors are q.weight and q.bias
  int64_t rows = 0;         // over all ranks
  int64_t padded_rows = 0;  // a multiple of tp; 0 = rows. The added rows are zero and not part of the model
};

// Splits the outputs: each rank holds [o/tp, i] of the weight and o/tp entries of the bias.
class ColumnParallelLinear {
 public:
  // `name` is that of the fused parameter ("qkv.weight"). `is_head` marks the layer that computes the logits. Throws
  // ConfigError if tp does not divide the rows of a part.
  ColumnParallelLinear(const ParameterScope& scope, const std::string& name, int64_t in, std::vector<OutputPart> out,
                       bool bias, Init init, TensorParallel tp, bool is_head = false);

  // See column_linear. With `add_bias` false the caller adds the bias, fused with its next operation. With
  // `slice_order` tokens leave in the order of these slices.
  at::Tensor forward(const at::Tensor& x, bool add_bias = true,
                     const std::optional<TokenSlices>& slice_order = {}) const;
  Parameter& weight() const { return *weight_; }
  Parameter* bias() const { return bias_; }  // [o/tp]; nullptr if there is none

 private:
  TensorParallel tp_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
};

// Splits the inputs: each rank holds [o, i/tp] of the weight; the bias is replicated.
class RowParallelLinear {
 public:
  // Throws ConfigError if tp does not divide `in`.
  RowParallelLinear(const ParameterScope& scope, const std::string& name, int64_t in, int64_t out, bool bias, Init init,
                    TensorParallel tp);

  // See row_linear. With `slice_order` the tokens of x are in the order of these slices.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual = {}, std::function<at::Tensor()> make_x = {},
                     const std::optional<TokenSlices>& slice_order = {}) const;
  Parameter& weight() const { return *weight_; }

 private:
  TensorParallel tp_;
  Parameter* weight_;
  Parameter* bias_ = nullptr;
};

}  // namespace megalith::nn
