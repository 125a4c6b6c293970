#include "megalith/nn/moe/experts.h"

#include <ATen/ATen.h>

#include <optional>

#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/parameter/weight_grad_queue.h"
#include "megalith/ops/kernel/autograd_state.h"

namespace megalith::nn {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

struct GroupedState {
  Parameter* weight;  // outlives every graph: the model does
  ops::GroupCounts counts;
  std::function<at::Tensor()> make_x;
  const LowRank* update = nullptr;  // that was active in forward
};

// [n · o, i] as [n, o, i]
at::Tensor group_matrices(const at::Tensor& stacked, const ops::GroupCounts& counts) {
  return stacked.view({counts.groups(), -1, stacked.size(1)});
}

// As Parameter::add_weight_grad, for every group.
at::Tensor add_weight_grad(Parameter& weight, const at::Tensor& dy, const at::Tensor& x,
                           const ops::GroupCounts& counts) {
  if (!weight.main_grad.defined()) {
    at::Tensor grad = at::empty_like(weight.value);
    ops::grouped_weight_grad(group_matrices(grad, counts), dy, x, counts, 0);
    return grad;
  }
  ops::grouped_weight_grad(group_matrices(weight.main_grad, counts), dy, x, counts, weight.main_grad_is_stale ? 0 : 1);
  weight.main_grad_is_stale = false;
  return {};
}

struct GroupedLinear : Function<GroupedLinear> {
  using MaybeTensor = std::optional<at::Tensor>;

  // `a` and `b`: of the update.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const MaybeTensor& /*a*/, const MaybeTensor& /*b*/, GroupedState state) {
    at::Tensor y = ops::grouped_mm_transposed(x, group_matrices(weight, state.counts), state.counts);
    LowRankInput input;
    at::Tensor h;  // [r, m rank]
    if (state.update) {
      input = low_rank_input(*state.update, x, /*split=*/true);  // rows that no other rank has, or parts of them
      h = grouped_low_rank_hidden(*state.update, input.value(), state.counts);
      add_grouped_low_rank(*state.update, h, y, state.counts);
    }
    const bool keeps_x = (weight.requires_grad() || keeps_input(state.update)) && !state.make_x;
    ctx->save_for_backward({keeps_x ? x : at::Tensor(), weight, h, input.mask});
    ops::keep(ctx, std::move(state));
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& state = ops::kept<GroupedState>(ctx);
    const auto saved = ctx->get_saved_variables();
    const at::Tensor dy = grads[0].contiguous();
    at::Tensor dx, dw;
    if (ctx->needs_input_grad(1))
      dw = state.weight->now_or_later(
          [weight = state.weight, dy, x = saved[0], counts = state.counts, make_x = state.make_x] {
            return add_weight_grad(*weight, dy, make_x ? make_x() : x, counts);
          });
    if (ctx->needs_input_grad(0)) dx = ops::grouped_mm(dy, group_matrices(saved[1], state.counts), state.counts);
    const LowRankGrads update =
        state.update ? update_grads(state, dy, saved[2], {saved[0], saved[3]}, dx) : LowRankGrads{};
    return {dx, dw, update.a, update.b, {}};
  }

 private:
  static LowRankGrads update_grads(const GroupedState& state, const at::Tensor& dy, const at::Tensor& h,
                                   LowRankInput input, const at::Tensor& dx) {
    const LowRank& update = *state.update;
    const ops::GroupCounts& counts = state.counts;
    const at::Tensor dh = grouped_low_rank_hidden_grad(update, dy, counts);
    if (dx.defined()) add_grouped_low_rank_input_grad(update, dh, input.mask, dx, counts);
    LowRankGrads grads;
    if (update.b->value.requires_grad())
      grads.b =
          update.b->now_or_later([&update, dy, h, counts] { return grouped_low_rank_b_grad(update, dy, h, counts); });
    if (!keeps_input(&update)) return grads;
    if (state.make_x) input.x = state.make_x();
    grads.a = update.a->now_or_later(
        [&update, dh, input, counts] { return grouped_low_rank_a_grad(update, dh, input, counts); });
    return grads;
  }
};

// The rows (dim 0) or columns (dim 1) of one matrix of one expert that this rank holds.
ParameterPart part_of(int64_t expert, const char* name, std::vector<int64_t> shape, size_t dim,
                      const ExpertShare& share, int64_t row) {
  ParameterPart part{fmt::format("{}.{}.weight", expert, name), shape, std::vector<int64_t>(2, 0), shape, row};
  part.extent[dim] = shape[dim] / share.etp;
  part.offset[dim] = share.etp_rank * part.extent[dim];
  return part;
}

}  // namespace

at::Tensor grouped_linear(const at::Tensor& x, Parameter& weight, const ops::GroupCounts& counts,
                          std::function<at::Tensor()> make_x) {
  const LowRank* update = active_update(weight);
  return GroupedLinear::apply(x, weight.value, a_of(update), b_of(update),
                              GroupedState{&weight, counts, std::move(make_x), update});
}

Experts::Experts(const ParameterScope& scope, const MoeShape& shape, const ExpertShare& share,
                 bool recompute_activation)
    : gated_(shape.gated),
      activation_(shape.activation),
      recompute_activation_(recompute_activation),
      count_(share.count) {
  Parameter up{.name = gated_ ? "gate_up.weight" : "up.weight",
               .init = shape.init,
               .use = WeightUse::kGroupedColumn,
               .split_over_tp = share.etp > 1,
               .expert = true};
  Parameter down{.name = "down.weight",
                 .init = shape.out_init,
                 .use = WeightUse::kGroupedRow,
                 .split_over_tp = share.etp > 1,
                 .expert = true};
  const int64_t width = shape.width / share.etp;
  int64_t row = 0;
  for (int64_t expert = share.first; expert < share.first + share.count; ++expert) {
    if (gated_) {
      up.parts.push_back(part_of(expert, "gate", {shape.width, shape.hidden}, 0, share, row));
      row += width;
    }
    up.parts.push_back(part_of(expert, "up", {shape.width, shape.hidden}, 0, share, row));
    row += width;
    down.parts.push_back(
        part_of(expert, "down", {shape.hidden, shape.width}, 1, share, (expert - share.first) * shape.hidden));
  }
  up_ = &scope.add(std::move(up), {row, shape.hidden});
  down_ = &scope.add(std::move(down), {share.count * shape.hidden, width});
}

at::Tensor Experts::forward(const at::Tensor& rows, const ops::GroupCounts& counts, const LocalRows& local) const {
  const at::Tensor before = grouped_linear(rows, *up_, counts, local.again);
  const auto activate = [gated = gated_, kind = activation_](const at::Tensor& y, const at::Tensor& weights) {
    if (gated) return ops::gated_activation(y, kind, weights);
    const at::Tensor plain = ops::bias_activation(y, {}, kind);
    return weights.defined() ? ops::weigh_rows(plain, weights) : plain;
  };
  const at::Tensor inside = activate(before, local.weights);
  if (!recompute_activation_) return grouped_linear(inside, *down_, counts);
  const at::Tensor weights = local.weights.defined() ? local.weights.detach() : at::Tensor();
  return grouped_linear(inside, *down_, counts, [activate, kept = before.detach(), weights] {
    const at::NoGradGuard no_grad;
    return activate(kept, weights);
  });
}

}  // namespace megalith::nn
