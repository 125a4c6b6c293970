#include "megalith/nn/mlp.h"

#include <ATen/core/grad_mode.h>

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
  if (shape_.gated) return down_.forward(ops::gated_activation(up_.forward(x), shape_.activation), residual);
  // Before and after a plain activation stand the two widest tensors of a layer; one of them is enough to keep.
  const at::Tensor before = up_.forward(x, /*add_bias=*/false);
  const auto activate = [bias = up_.bias(), kind = shape_.activation](const at::Tensor& y) {
    return ops::bias_activation(y, bias, kind);
  };
  return down_.forward(activate(before), residual, [activate, kept = before.detach()] {
    const at::NoGradGuard no_grad;
    return activate(kept);
  });
}

}  // namespace megalith::nn
