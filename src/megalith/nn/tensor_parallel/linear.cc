#include "megalith/nn/tensor_parallel/linear.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "megalith/base/error.h"
#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/parameter/weight_grad_queue.h"
#include "megalith/nn/tensor_parallel/fp8_history.h"
#include "megalith/nn/tensor_parallel/fp8_linear.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "megalith/ops/gemm/product.h"
#include "megalith/ops/kernel/autograd_state.h"
#include "megalith/ops/update/gradient_sums.h"

namespace megalith::nn {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

struct LinearState {
  Parameter* weight;  // outlives every graph: the model does
  TensorParallel tp;
  bool bias_grad = false;                   // a bias was given and wants a gradient
  bool has_residual = false;                // a residual was given
  std::function<at::Tensor()> make_x = {};  // row linear: gives the input again; empty: it is kept
  ops::GradTarget bias_target = {};
  bool records = false;             // a graph is made: the pass is part of a step
  bool in_fp8 = false;              // what is saved are Fp8Factors
  const LowRank* update = nullptr;  // that was active in forward
};

void save_factors(AutogradContext* ctx, const Fp8Factors& f, bool weight_grad) {
  ctx->save_for_backward({weight_grad ? f.x_columns : at::Tensor(), f.x_inverse_scale, f.weight, f.w_scale});
}
Fp8Factors saved_factors(AutogradContext* ctx) {
  const auto saved = ctx->get_saved_variables();
  return {saved[0], saved[1], saved[2], saved[3]};
}

// dW in fp8, now or later.
at::Tensor weight_grad_in_fp8(Parameter& weight, const ops::Fp8Matrix& dy, const Fp8Factors& factors) {
  if (!weight.defers_weight_grad()) return add_fp8_weight_grad(weight, dy, factors);
  weight.queue->add([&weight, dy, factors] { add_fp8_weight_grad(weight, dy, factors); });
  return {};
}

using MaybeTensor = std::optional<at::Tensor>;  // an argument that autograd may leave out
MaybeTensor maybe(const at::Tensor& tensor) { return tensor.defined() ? MaybeTensor(tensor) : std::nullopt; }
at::Tensor value_of(const Parameter* bias) { return bias ? bias->value : at::Tensor(); }
ops::GradTarget target_of(Parameter* bias) { return bias ? bias->target() : ops::GradTarget(); }

// This rank's tokens of a tensor of all.
at::Tensor own_tokens(const at::Tensor& whole, const TensorParallel& tp) {
  if (!whole.defined() || !tp.splits_tokens()) return whole;
  const auto [first, count] = tp.share(whole.size(0));
  return whole.narrow(0, first, count).clone();
}

at::Tensor empty_rows(const at::Tensor& like, int64_t rows) {
  auto shape = like.sizes().vec();
  shape[0] = rows;
  return at::empty(shape, like.options());
}

// The sum over the ranks of what each has of dx, underway.
struct ReducedInput {
  at::Tensor dx;
  comm::Work reducing;
};
ReducedInput start_reducing(const at::Tensor& partial, const TensorParallel& tp) {
  if (!tp.splits_tokens())
    return {partial, tp.group.all_reduce_async(partial, comm::ReduceOp::kSum, "column linear backward")};
  at::Tensor dx = empty_rows(partial, partial.size(0) / tp.size());
  comm::Work work = tp.group.reduce_scatter_async(dx, partial, comm::ReduceOp::kSum, "column linear backward");
  return {dx, std::move(work)};
}

struct ColumnLinear : Function<ColumnLinear> {
  // x [t, i] or [t/tp, i]; weight [o/tp, i]; bias [o/tp] or undefined -> [t, o/tp]. `a` and `b`: of the update; they
  // are arguments so that autograd knows of them.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const MaybeTensor& bias, const MaybeTensor& /*a*/, const MaybeTensor& /*b*/,
                            LinearState state) {
    state.bias_grad = bias && bias->requires_grad();
    const at::Tensor whole = state.tp.splits_tokens() ? all_gather_rows(x, state.tp.group, "column linear input") : x;
    state.in_fp8 = !state.update && applies_fp8(state.tp.fp8, whole, weight);
    ops::keep(ctx, state);
    if (state.in_fp8) {
      Fp8Forward result = fp8_forward(whole, *state.weight, *state.tp.fp8, state.records);
      save_factors(ctx, result.factors, weight.requires_grad());
      return bias ? result.y.add_(*bias) : result.y;
    }
    at::Tensor y = ops::product(whole, weight.t(), {.bias = bias.value_or(at::Tensor())});
    at::Tensor h, mask;  // [t, m r]; [t, i] or [t/tp, i]
    if (state.update) {
      const LowRankInput input = low_rank_input(*state.update, whole, /*split=*/false);
      h = low_rank_hidden(*state.update, input.value());
      add_low_rank(*state.update, h, y);
      mask = own_tokens(input.mask, state.tp);
    }
    const bool keeps_x = weight.requires_grad() || keeps_input(state.update);  // frozen weights need no input
    ctx->save_for_backward({keeps_x ? x : at::Tensor(), weight, h, mask});
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& state = ops::kept<LinearState>(ctx);
    if (state.in_fp8) return backward_in_fp8(ctx, state, grads[0].contiguous());
    const TensorParallel& tp = state.tp;
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &h = saved[2], &mask = saved[3];
    const at::Tensor dy = grads[0].contiguous();
    const bool needs_dx = ctx->needs_input_grad(0);
    bool needs_dw = ctx->needs_input_grad(1);
    if (needs_dw && state.weight->defers_weight_grad()) {
      state.weight->queue->add([weight = state.weight, tp, dy, x = saved[0]] {
        const at::Tensor whole = tp.splits_tokens() ? all_gather_rows(x, tp.group, "column linear weight gradient") : x;
        weight->add_weight_grad(dy, whole);
      });
      needs_dw = false;
    }

    at::Tensor whole = x;
    comm::Work gathering;
    if (needs_dw && tp.splits_tokens()) {
      whole = empty_rows(x, x.size(0) * tp.size());
      gathering = tp.group.all_gather_async(whole, x.contiguous(), "column linear backward input");
    }
    // Of this rank's outputs alone; with sequence parallelism then summed, for this rank's tokens.
    at::Tensor dh = state.update ? low_rank_hidden_grad(*state.update, dy) : at::Tensor();
    ReducedInput input;
    if (needs_dx) {
      const at::Tensor partial = ops::product(dy, weight);  // [t, i]
      gathering.wait();
      if (state.update && !tp.splits_tokens()) add_low_rank_input_grad(*state.update, dh, mask, partial);
      input = start_reducing(partial, tp);
    }
    gathering.wait();
    at::Tensor dw, db;
    if (needs_dw) dw = state.weight->add_weight_grad(dy, whole);
    if (state.bias_grad) db = ops::bias_grad(dy, state.bias_target);
    input.reducing.wait();
    const LowRankGrads update = update_grads(state, dy, dh, h, {x, mask}, input.dx);
    return {input.dx, dw, db, update.a, update.b, {}};
  }

 private:
  static variable_list backward_in_fp8(AutogradContext* ctx, const LinearState& state, const at::Tensor& dy) {
    const ops::Fp8Recipe& recipe = *state.tp.fp8;
    const ops::Fp8Matrix dy8 = fp8_gradient(dy, *state.weight, recipe);
    const Fp8Factors factors = saved_factors(ctx);
    ReducedInput input;
    if (ctx->needs_input_grad(0)) input = start_reducing(fp8_grad_x(dy8, factors, recipe, dy.scalar_type()), state.tp);
    at::Tensor dw, db;
    if (ctx->needs_input_grad(1)) dw = weight_grad_in_fp8(*state.weight, dy8, factors);
    if (state.bias_grad) db = ops::bias_grad(dy, state.bias_target);
    input.reducing.wait();
    return {input.dx, dw, db, {}, {}, {}};
  }

  // What is left to do for the update; with sequence parallelism its part of dx, too.
  static LowRankGrads update_grads(const LinearState& state, const at::Tensor& dy, at::Tensor dh, const at::Tensor& h,
                                   const LowRankInput& input, const at::Tensor& dx) {
    if (!state.update) return {};
    if (state.tp.splits_tokens()) {
      dh = reduce_scatter_rows(dh, state.tp.group, "low-rank update backward");
      if (dx.defined()) add_low_rank_input_grad(*state.update, dh, input.mask, dx);
    }
    return low_rank_grads(*state.update, dy, h, dh, input);
  }
};

struct RowLinear : Function<RowLinear> {
  // x [t, i/tp]; weight [o, i/tp]; bias [o], residual [t, o] or [t/tp, o], or undefined -> [t, o] or [t/tp, o]
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const MaybeTensor& bias, const MaybeTensor& residual, const MaybeTensor& /*a*/,
                            const MaybeTensor& /*b*/, LinearState state) {
    state.bias_grad = bias && bias->requires_grad();
    state.has_residual = residual.has_value();
    const TensorParallel& tp = state.tp;
    state.in_fp8 = !state.update && applies_fp8(tp.fp8, x, weight);
    ops::keep(ctx, state);
    at::Tensor y;
    if (state.in_fp8) {
      Fp8Forward result = fp8_forward(x, *state.weight, *tp.fp8, state.records);
      save_factors(ctx, result.factors, weight.requires_grad());
      y = result.y;
    } else {
      LowRankInput input;
      at::Tensor h;  // [t, r]: this rank's part of a sum
      if (state.update) {
        input = low_rank_input(*state.update, x, /*split=*/true);
        h = low_rank_hidden(*state.update, input.value());
      }
      const bool keeps_x = (weight.requires_grad() || keeps_input(state.update)) && !state.make_x;
      ctx->save_for_backward({keeps_x ? x : at::Tensor(), weight, h, input.mask});
      const bool alone = tp.size() == 1;  // the product adds everything
      const ops::Addends added{bias.value_or(at::Tensor()), residual.value_or(at::Tensor())};
      y = ops::product(x, weight.t(), alone ? added : ops::Addends{});
      if (state.update) add_low_rank(*state.update, h, y);
      if (alone) return y;
    }
    if (tp.splits_tokens()) {
      y = reduce_scatter_rows(y, tp.group, "row linear");
    } else {
      tp.group.all_reduce(y, comm::ReduceOp::kSum, "row linear");
    }
    if (residual && bias) {
      ops::add_bias_residual_(y, *bias, *residual);
      return y;
    }
    if (residual) y.add_(*residual);
    if (bias) y.add_(*bias);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    auto& state = ops::kept<LinearState>(ctx);
    const TensorParallel& tp = state.tp;
    at::Tensor dy = grads[0].contiguous();
    at::Tensor db;
    if (state.bias_grad) db = ops::bias_grad(dy, state.bias_target);
    if (tp.splits_tokens()) dy = all_gather_rows(dy, tp.group, "row linear backward");
    if (state.in_fp8) {
      const ops::Fp8Matrix dy8 = fp8_gradient(dy, *state.weight, *tp.fp8);
      const Fp8Factors factors = saved_factors(ctx);
      at::Tensor dx, dw;
      if (ctx->needs_input_grad(1)) dw = weight_grad_in_fp8(*state.weight, dy8, factors);
      if (ctx->needs_input_grad(0)) dx = fp8_grad_x(dy8, factors, *tp.fp8, dy.scalar_type());
      return {dx, dw, db, state.has_residual ? grads[0] : at::Tensor(), {}, {}, {}};
    }
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &h = saved[2], &mask = saved[3];
    at::Tensor dx, dw;  // dw first: an x that was made again is gone before dx, which is as large, is there
    if (ctx->needs_input_grad(1))
      dw = state.weight->now_or_later([weight = state.weight, dy, x, make_x = state.make_x] {
        return weight->add_weight_grad(dy, make_x ? make_x() : x);
      });
    LowRankGrads update;
    at::Tensor dh;
    if (state.update) {
      dh = low_rank_hidden_grad(*state.update, dy);
      const bool makes_x = state.make_x && keeps_input(state.update);
      update = low_rank_grads(*state.update, dy, h, dh, {makes_x ? state.make_x() : x, mask});
    }
    if (ctx->needs_input_grad(0)) {
      dx = ops::product(dy, weight);
      if (state.update) add_low_rank_input_grad(*state.update, dh, mask, dx);
    }
    return {dx, dw, db, state.has_residual ? grads[0] : at::Tensor(), update.a, update.b, {}};
  }
};

// The rows of `part` that this rank holds, and where they stand in the fused parameter.
ParameterPart rows_of(const OutputPart& part, const char* suffix, std::vector<int64_t> shape, int64_t row,
                      const TensorParallel& tp) {
  const auto [first, count] = tp.share(part.padded_rows);
  std::vector<int64_t> offset(shape.size(), 0), extent = shape;
  offset[0] = std::min(first, part.rows);
  extent[0] = std::clamp<int64_t>(part.rows - first, 0, count);
  return {part.name + suffix, std::move(shape), std::move(offset), std::move(extent), row};
}

}  // namespace

at::Tensor column_linear(const at::Tensor& x, Parameter& weight, Parameter* bias, const TensorParallel& tp) {
  const LowRank* update = active_update(weight);
  return ColumnLinear::apply(x, weight.value, maybe(value_of(bias)), a_of(update), b_of(update),
                             LinearState{.weight = &weight,
                                         .tp = tp,
                                         .bias_target = target_of(bias),
                                         .records = at::GradMode::is_enabled(),
                                         .update = update});
}

at::Tensor row_linear(const at::Tensor& x, Parameter& weight, Parameter* bias, const at::Tensor& residual,
                      const TensorParallel& tp, std::function<at::Tensor()> make_x) {
  const LowRank* update = active_update(weight);
  return RowLinear::apply(x, weight.value, maybe(value_of(bias)), maybe(residual), a_of(update), b_of(update),
                          LinearState{.weight = &weight,
                                      .tp = tp,
                                      .make_x = std::move(make_x),
                                      .bias_target = target_of(bias),
                                      .records = at::GradMode::is_enabled(),
                                      .update = update});
}

ColumnParallelLinear::ColumnParallelLinear(const ParameterScope& scope, const std::string& name, int64_t in,
                                           std::vector<OutputPart> out, bool bias, Init init, TensorParallel tp)
    : tp_(std::move(tp)) {
  Parameter weight{.name = name + ".weight", .init = init, .use = WeightUse::kColumn, .split_over_tp = tp_.size() > 1};
  Parameter offset{.name = name + ".bias", .split_over_tp = tp_.size() > 1};
  int64_t rows = 0;
  for (OutputPart& part : out) {
    if (part.padded_rows == 0) part.padded_rows = part.rows;
    check<ConfigError>(part.padded_rows % tp_.size() == 0,
                       "{} has {} outputs, which cannot be split over tensor_model_parallel_size {}; use a size that"
                       " divides them",
                       part.name, part.padded_rows, tp_.size());
    weight.parts.push_back(rows_of(part, ".weight", {part.rows, in}, rows, tp_));
    offset.parts.push_back(rows_of(part, ".bias", {part.rows}, rows, tp_));
    rows += part.padded_rows / tp_.size();
  }
  weight_ = &scope.add(std::move(weight), {rows, in});
  weight_->fp8 = fp8_history(tp_.fp8, weight_->value.device());
  if (bias) bias_ = &scope.add(std::move(offset), {rows});
}

at::Tensor ColumnParallelLinear::forward(const at::Tensor& x, bool add_bias) const {
  return column_linear(x, *weight_, add_bias ? bias_ : nullptr, tp_);
}

RowParallelLinear::RowParallelLinear(const ParameterScope& scope, const std::string& name, int64_t in, int64_t out,
                                     bool bias, Init init, TensorParallel tp)
    : tp_(std::move(tp)) {
  check<ConfigError>(in % tp_.size() == 0,
                     "{} has {} inputs, which cannot be split over tensor_model_parallel_size {}; use a size that"
                     " divides them",
                     name, in, tp_.size());
  const auto [first, count] = tp_.share(in);
  Parameter weight{.name = name + ".weight", .init = init, .use = WeightUse::kRow, .split_over_tp = tp_.size() > 1};
  weight.parts.push_back({weight.name, {out, in}, {0, first}, {out, count}, 0});
  weight_ = &scope.add(std::move(weight), {out, count});
  weight_->fp8 = fp8_history(tp_.fp8, weight_->value.device());
  if (bias)
    bias_ =
        &scope.add({.name = name + ".bias", .partial_grad_over_tp = tp_.splits_tokens(), .replica = tp_.rank()}, {out});
}

at::Tensor RowParallelLinear::forward(const at::Tensor& x, const at::Tensor& residual,
                                      std::function<at::Tensor()> make_x) const {
  return row_linear(x, *weight_, bias_, residual, tp_, std::move(make_x));
}

}  // namespace megalith::nn
