// With sequence parallelism a rank has the gradient of its own tokens (partial); without it every rank computes the
// whole gradient, and must do so with the same kernels so that the copies stay equal bit for bit (equal_grad_over_tp).
#include "megalith/nn/tensor_parallel/replicated_linear.h"

#include <ATen/ATen.h>

#include "megalith/nn/tensor_parallel/fp8_history.h"
#include "megalith/nn/tensor_parallel/product.h"

namespace megalith::nn {

ReplicatedLinear::ReplicatedLinear(const ParameterScope& scope, const std::string& name, int64_t in,
                                   const std::vector<OutputPart>& out, bool bias, Init init, const TensorParallel& tp)
    : fp8_(tp.fp8) {
  ParameterSpec weight{.name = name + ".weight",
                       .init = init,
                       .use = WeightUse::kReplicated,
                       .partial_grad_over_tp = tp.splits_tokens(),
                       .equal_grad_over_tp = tp.size() > 1 && !tp.splits_tokens(),
                       .replica = tp.rank()};
  ParameterSpec offset{.name = name + ".bias", .partial_grad_over_tp = tp.splits_tokens(), .replica = tp.rank()};
  int64_t rows = 0;
  for (const OutputPart& part : out) {
    weight.parts.push_back({part.name + ".weight", {part.rows, in}, {0, 0}, {part.rows, in}, rows});
    offset.parts.push_back({part.name + ".bias", {part.rows}, {0}, {part.rows}, rows});
    rows += part.rows;
  }
  weight_ = &scope.add(std::move(weight), {rows, in});
  attach_fp8(*weight_, fp8_);
  if (bias) bias_ = &scope.add(std::move(offset), {rows});
}

at::Tensor ReplicatedLinear::product(const at::Tensor& x, Parameter* bias, const at::Tensor& residual,
                                     std::function<at::Tensor()> make_x) const {
  const ProductInput input{.tokens = x.size(0), .split = weight_->spec.partial_grad_over_tp};
  return local_linear(x, make_product(*weight_, input, fp8_), bias, residual, std::move(make_x));
}

at::Tensor ReplicatedLinear::forward(const at::Tensor& x, const at::Tensor& residual,
                                     std::function<at::Tensor()> make_x) const {
  return product(x, bias_, residual, std::move(make_x));
}

at::Tensor ReplicatedLinear::forward_without_bias(const at::Tensor& x) const { return product(x, nullptr, {}, {}); }

}  // namespace megalith::nn
