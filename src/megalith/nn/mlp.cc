// x ─► up (column-parallel) ─► activation ─► down (row-parallel) + residual. The width is split over tp from one
// product to the other, so that a forward pass has the collective of the row layer only (plus the gather of sequence
// parallelism).
#include "megalith/nn/mlp.h"

#include <ATen/core/grad_mode.h>

#include "megalith/nn/tensor_parallel/linear_function.h"

namespace megalith::nn {

std::vector<OutputPart> up_parts(const MlpShape& shape) {
  if (!shape.gated) return {{"up", shape.width}};
  return {{"gate", shape.width}, {"up", shape.width}};
}

Mlp::Mlp(const ParameterScope& scope, const MlpShape& shape, const TensorParallel& tp)
    : shape_(shape),
      tp_(tp),
      up_(scope, shape.gated ? "gate_up" : "up", shape.hidden, up_parts(shape), shape.bias, shape.init, tp),
      down_(scope, "down", shape.width, shape.hidden, shape.bias, shape.out_init, tp) {}

at::Tensor Mlp::forward(const at::Tensor& x, const at::Tensor& residual) const {
  return forward_down(forward_up(x), residual);
}

// A plain activation adds the bias itself, in the same pass; gated ones take gate and up with their biases added.
at::Tensor Mlp::forward_up(const at::Tensor& x) const {
  const int64_t tokens = x.size(0) * (tp_.splits_tokens() ? tp_.size() : 1);
  return up_.forward(x, /*add_bias=*/shape_.gated, common_slices(tokens, up_.weight(), down_.weight(), tp_));
}

at::Tensor Mlp::forward_down(const at::Tensor& before, const at::Tensor& residual) const {
  const auto activate = [bias = up_.bias(), gated = shape_.gated, kind = shape_.activation](const at::Tensor& y) {
    if (gated) return ops::gated_activation(y, kind);
    return bias ? ops::bias_activation(y, bias->value, kind, bias->grad.target()) : ops::bias_activation(y, {}, kind);
  };
  const auto order = common_slices(before.size(0), up_.weight(), down_.weight(), tp_);
  // The input and the output of a plain activation are the two widest tensors of a layer. The CPU always keeps just the
  // input and recomputes the output in backward; on CUDA that costs too much time to be the default.
  if (!shape_.recompute_activation && (shape_.gated || before.is_cuda()))
    return down_.forward(activate(before), residual, {}, order);
  const auto again = [activate, kept = before.detach()] {
    const at::NoGradGuard no_grad;
    return activate(kept);
  };
  return down_.forward(activate(before), residual, again, order);
}

}  // namespace megalith::nn
