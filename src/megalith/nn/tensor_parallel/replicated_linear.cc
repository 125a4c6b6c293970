#include "megalith/nn/tensor_parallel/replicated_linear.h"

#include <ATen/ATen.h>

#include <optional>

#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/parameter/weight_grad_queue.h"
#include "megalith/ops/gemm/product.h"
#include "megalith/ops/kernel/autograd_state.h"

namespace megalith::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct LocalState {
  Parameter* weight;  // outlives every graph: the model does
  const LowRank* update;
};

struct LocalLinear : torch::autograd::Function<LocalLinear> {
  using MaybeTensor = std::optional<at::Tensor>;

  // x [t, i]; weight [o, i] -> [t, o]. `a` and `b`: of the update. `split`: the ranks have other tokens each.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const MaybeTensor& /*a*/, const MaybeTensor& /*b*/, const LocalState& state, bool split) {
    at::Tensor y = ops::product(x, weight.t(), {}, state.weight->kernels()), h;
    LowRankInput input;
    if (state.update) {
      input = low_rank_input(*state.update, x, split);
      h = low_rank_hidden(*state.update, input.value());
      add_low_rank(*state.update, h, y);
    }
    const bool keeps_x = weight.requires_grad() || keeps_input(state.update);
    ctx->save_for_backward({keeps_x ? x : at::Tensor(), weight, h, input.mask});
    ops::keep(ctx, state);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const LocalState state = ops::kept<LocalState>(ctx);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &h = saved[2], &mask = saved[3];
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor dx, dw, dh;
    if (ctx->needs_input_grad(1))
      dw = state.weight->now_or_later([state, dy, x] { return state.weight->add_weight_grad(dy, x); });
    if (ctx->needs_input_grad(0)) dx = ops::product(dy, weight, {}, state.weight->kernels());
    LowRankGrads update;
    if (state.update) {
      dh = low_rank_hidden_grad(*state.update, dy);
      if (dx.defined()) add_low_rank_input_grad(*state.update, dh, mask, dx);
      update = low_rank_grads(*state.update, dy, h, dh, {x, mask});
    }
    return {dx, dw, update.a, update.b, {}, {}};
  }
};

}  // namespace

ReplicatedLinear::ReplicatedLinear(const ParameterScope& scope, const std::string& name, int64_t in,
                                   const std::vector<OutputPart>& out, bool bias, Init init, const TensorParallel& tp) {
  Parameter weight{.name = name + ".weight",
                   .init = init,
                   .use = WeightUse::kReplicated,
                   .partial_grad_over_tp = tp.splits_tokens(),
                   .equal_grad_over_tp = tp.size() > 1 && !tp.splits_tokens(),
                   .replica = tp.rank()};
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
  const LowRank* update = active_update(*weight_);
  const at::Tensor y = LocalLinear::apply(x, weight_->value, a_of(update), b_of(update), LocalState{weight_, update},
                                          weight_->partial_grad_over_tp);
  return bias_ ? y + bias_->value : y;
}

}  // namespace megalith::nn
