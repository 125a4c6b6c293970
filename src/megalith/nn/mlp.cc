#include "megalith/nn/mlp.h"

namespace megalith::nn {

namespace {

std::vector<OutputPart> outputs(const MlpShape& shape) {
  if (!shape.gated) return {{"up", shape.width}};
  return {{"gate", shape.width}, {"up", shape.width}};
}

}  // namespace

Mlp::Mlp(const ParameterScope& scope, const MlpShape& shape, const TensorParallel& tp)
    : shape_(shape),
      up_(scope, shape.gated ? "gate_up" : "up", shape.hidden, outputs(shape), shape.bias, shape.init, tp),
      down_(scope, "down", shape.width, shape.hidden, shape.bias, shape.out_init, tp) {}

at::Tensor Mlp::forward(const at::Tensor& x, const at::Tensor& residual) const {
  const at::Tensor inner =
      shape_.gated ? ops::gated_activation(up_.forward(x), shape_.activation)
                   : ops::bias_activation(up_.forward(x, /*add_bias=*/false), up_.bias(), shape_.activation);
  return down_.forward(inner, residual);
}

}  // namespace megalith::nn
