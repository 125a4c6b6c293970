#include "megalith/nn/tensor_parallel/replicated_linear.h"

#include <ATen/ATen.h>

#include "megalith/nn/weight_grad_queue.h"
#include "megalith/ops/autograd_state.h"

namespace megalith::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LocalLinear : torch::autograd::Function<LocalLinear> {
  // x [t, i]; weight [o, i] -> [t, o]. `parameter` outlives every graph: the model does.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight, Parameter* parameter) {
    ctx->save_for_backward({weight.requires_grad() ? x : at::Tensor(), weight});
    ops::keep(ctx, parameter);
    return x.mm(weight.t());
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    Parameter* parameter = ops::kept<Parameter*>(ctx);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor dx, dw;
    if (ctx->needs_input_grad(1) && parameter->defers_weight_grad())
      parameter->queue->add([parameter, dy, x = saved[0]] { parameter->add_weight_grad(dy, x); });
    else if (ctx->needs_input_grad(1))
      dw = parameter->add_weight_grad(dy, saved[0]);
    if (ctx->needs_input_grad(0)) dx = dy.mm(saved[1]);
    return {dx, dw, {}};
  }
};

}  // namespace

ReplicatedLinear::ReplicatedLinear(const ParameterScope& scope, const std::string& name, int64_t in,
                                   const std::vector<OutputPart>& out, bool bias, Init init, const TensorParallel& tp) {
  Parameter weight{
      .name = name + ".weight", .init = init, .partial_grad_over_tp = tp.splits_tokens(), .replica = tp.rank()};
  Parameter offset{.name = name + ".bias", .partial_grad_over_tp = tp.splits_tokens(), .replica = tp.rank()};
  int64_t rows = 0;
  for (const OutputPart& part : out) {
    weight.parts.push_back({part.name + ".weight", {part.rows, in}, {0, 0}, {part.rows, in}, rows});
    offset.parts.push_back({part.name + ".bias", {part.rows}, {0}, {part.rows}, rows});
    rows += part.rows;
  }
  weight_ = &scope.add(std::move(weight), {rows, in});
  if (bias) bias_ = &scope.add(std::move(offset), {rows});
}

at::Tensor ReplicatedLinear::forward(const at::Tensor& x) const {
  const at::Tensor y = LocalLinear::apply(x, weight_->value, weight_);
  return bias_ ? y + bias_->value : y;
}

}  // namespace megalith::nn
