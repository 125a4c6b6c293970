// One autograd function per layer of the header's table. A Product multiplies (dense, in fp8, with a low-rank update)
// and decides what to keep; the functions here run the collectives around its calls. In backward, collectives overlap
// with products that do not need their result.
//
//   column, backward    time ──►                                    (SP: sequence parallelism)
//   communication       gather x (SP) ....   reduce dx ...............
//   computation         dx = dy W            dW = dyᵀ x,  db = Σ dy    [+ update's part of dx]
//
// dx comes before dW because its reduction is what the preceding layer waits for: the weight gradient, as much work as
// dx, hides it. The gather of x starts first of all, since dW cannot start without it; the reduction starts when
// it has arrived.
//
//   row, backward       gather dy (SP), then dW, then dx: the gather is needed by both, so that nothing overlaps
//
// That leaves three collectives of sequence parallelism exposed: the gather of column forward, the reduce-scatter of
// row forward and the gather of row backward; and a fourth one, the reduce-scatter of column backward, if dW does not
// follow it (frozen or deferred). With TensorParallel::overlap they travel in slices beside the product that reads or
// writes their tokens (sliced_product.h), where the product can be computed by blocks of rows and is large enough.
//
//   row, backward       gather dy in slices, each multiplied into dx when it arrives; then dW from all of them
#include "megalith/nn/tensor_parallel/linear_function.h"

#include <ATen/ATen.h>

#include <initializer_list>
#include <optional>

#include "megalith/nn/parameter/weight_grad_queue.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "megalith/nn/tensor_parallel/product_internal.h"
#include "megalith/nn/tensor_parallel/sliced_product.h"
#include "megalith/ops/kernel/autograd_state.h"
#include "megalith/ops/update/gradient_sums.h"

namespace megalith::nn {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

namespace {

using MaybeTensor = std::optional<at::Tensor>;  // an argument that autograd may leave out

// State that forward keeps for backward besides tensors.
struct LinearState {
  Parameter* weight;  // outlives every graph: the model does
  ProductPtr product;
  TensorParallel tp;
  ops::GradTarget bias_target = {};
  bool bias_grad = false;     // a bias was given and requires a gradient
  bool has_residual = false;  // a residual was given
  MakeInput make_x = {};      // row layer: recomputes the input; empty if it is kept
};

// Returns the result of a backward function in the order of forward's arguments: x, the weights, the others.
variable_list gradients(const at::Tensor& dx, variable_list weights, std::initializer_list<at::Tensor> others) {
  weights.insert(weights.begin(), dx);
  weights.insert(weights.end(), others);
  return weights;
}

// Returns an uninitialized tensor like `like` with another number of rows: the destination of a collective.
at::Tensor empty_rows(const at::Tensor& like, int64_t rows) {
  auto shape = like.sizes().vec();
  shape[0] = rows;
  return at::empty(shape, like.options());
}

// Returns the slices in which tokens travel beside a product with `columns` results per token, of which each rank holds
// `rows` rows; std::nullopt if they travel at once.
std::optional<TokenSlices> slices_for(const LinearState& state, int64_t rows, int64_t columns) {
  const TensorParallel& tp = state.tp;
  if (!tp.overlap || !tp.splits_tokens() || !state.product->by_blocks()) return std::nullopt;
  const int64_t count = slice_count(rows, tp.size(), columns, state.weight->value.is_cuda(), tp.slices);
  if (count == 1) return std::nullopt;
  return TokenSlices(rows, tp.size(), count);
}

// Whether backward computes the weight gradient itself, and does not skip it or leave it for later.
bool computes_weight_grad(const LinearState& state) {
  return state.weight->value.requires_grad() && !state.weight->grad.defers();
}

// dx while its reduction over tp is in flight.
struct ReducedInput {
  at::Tensor dx;
  comm::Work work;
};
ReducedInput start_reducing(const at::Tensor& partial, const TensorParallel& tp) {
  if (!tp.splits_tokens())
    return {partial, tp.group.all_reduce_async(partial, comm::ReduceOp::kSum, "column linear backward")};
  at::Tensor dx = empty_rows(partial, partial.size(0) / tp.size());
  comm::Work work = tp.group.reduce_scatter_async(dx, partial, comm::ReduceOp::kSum, "column linear backward");
  return {dx, std::move(work)};
}

// Returns the input of a deferred weight gradient, which is the next job that `queue` gets: gathered beside the job
// before it, and not now, because until then the shard alone is held.
MakeInput gathered_later(WeightGradQueue& queue, const at::Tensor& shard, const TensorParallel& tp) {
  struct Gather {
    at::Tensor whole;
    comm::Work work;
  };
  auto gather = std::make_shared<Gather>();
  queue.start_ahead([gather, group = tp.group, x = shard.detach().contiguous()] {
    gather->whole = empty_rows(x, x.size(0) * group.size());
    gather->work = group.all_gather_async(gather->whole, x, "column linear weight gradient");
  });
  return [gather] {
    gather->work.wait();
    return gather->whole;
  };
}

// x of all tokens for the weight gradient: in flight, or to be gathered later if that gradient is deferred. Empty if
// backward has all it needs: without sequence parallelism, for frozen weights and in fp8.
struct GatheredInput {
  MakeInput make_x;
  comm::Work work;
};
GatheredInput start_gathering(const LinearState& state, const Saved& saved) {
  const TensorParallel& tp = state.tp;
  if (!tp.splits_tokens() || !saved.x.defined() || !state.weight->value.requires_grad()) return {};
  if (state.weight->grad.defers()) return {gathered_later(*state.weight->grad.queue, saved.x, tp), {}};
  at::Tensor whole = empty_rows(saved.x, saved.x.size(0) * tp.size());
  comm::Work work = tp.group.all_gather_async(whole, saved.x.contiguous(), "column linear backward input");
  return {[whole] { return whole; }, std::move(work)};
}

// Gathers x [t/tp, i] if the ranks hold shards of it, and returns x Wᵀ + addends [t, o/tp].
at::Tensor product_of_gathered(const at::Tensor& x, const ops::Addends& added, const LinearState& state, Saved& saved) {
  constexpr const char* kLabel = "column linear input";
  const TensorParallel& tp = state.tp;
  const Product& product = *state.product;
  const int64_t columns = state.weight->value.size(0);
  if (const auto slices = slices_for(state, x.size(0), columns)) {
    at::Tensor y = gather_and_multiply(x, columns, *slices, tp.group, kLabel, [&](const auto& out, const auto& in) {
                     product.multiply_blocks(out, in);
                   }).output;
    product.save_for_blocks(x, saved);
    add_addends_(y, added);
    return y;
  }
  return product.forward(tp.splits_tokens() ? all_gather_rows(x, tp.group, kLabel) : x, added, saved);
}

// Returns dy W of all ranks summed over tp, [t/tp, i], where its reduce-scatter has to overlap with the product itself
// because no weight gradient follows; undefined if it need not, or cannot.
at::Tensor sliced_input_grad(const OutputGrad& dy, const LinearState& state, const Saved& saved) {
  const TensorParallel& tp = state.tp;
  if (computes_weight_grad(state)) return {};
  const int64_t columns = state.weight->value.size(1);
  const auto slices = slices_for(state, dy.dy.size(0) / tp.size(), columns);
  if (!slices) return {};
  return multiply_and_scatter(
      dy.dy, columns, *slices, tp.group, "column linear backward",
      [&](const auto& out, const auto& in) { state.product->multiply_grad_blocks(out, in, saved); });
}

// In backward of the column layer two collectives overlap with products: with sequence parallelism the gathering of x
// with dy W, and in any case the reduction of dx with the weight gradients.
struct ColumnLinear : Function<ColumnLinear> {
  // x [t, i] or [t/tp, i]; bias [o/tp] or undefined -> [t, o/tp]
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList /*weights*/,
                            const MaybeTensor& bias, LinearState state) {
    Saved saved;
    at::Tensor y = product_of_gathered(x, {.bias = bias.value_or(at::Tensor())}, state, saved);
    if (saved.x.defined()) saved.x = x;  // the shard is enough: backward gathers it again
    ctx->save_for_backward(saved.all());
    ops::save_state(ctx, std::move(state));
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& state = ops::saved_state<LinearState>(ctx);
    const TensorParallel& tp = state.tp;
    const Product& product = *state.product;
    const Saved saved = Saved::from(ctx->get_saved_variables());
    OutputGrad dy = product.output_grad(grads[0].contiguous());
    // dy.hidden covers only this rank's outputs so far. With sequence parallelism it is summed here, while it is
    // narrow, and multiplied into dx at the end; otherwise its product joins dx before dx is summed.
    if (tp.splits_tokens() && dy.hidden.defined())
      dy.hidden = reduce_scatter_rows(dy.hidden, tp.group, "low-rank update backward");
    GatheredInput gathered = start_gathering(state, saved);
    ReducedInput input;
    if (ctx->needs_input_grad(0)) input.dx = sliced_input_grad(dy, state, saved);
    if (ctx->needs_input_grad(0) && !input.dx.defined()) {
      const at::Tensor partial =
          tp.splits_tokens() ? product.grad_through_weight(dy, saved) : product.grad_input(dy, saved);  // [t, i]
      gathered.work.wait();
      input = start_reducing(partial, tp);
    }
    gathered.work.wait();
    variable_list weights = product.grad_weights(dy, saved, gathered.make_x);
    at::Tensor db;
    if (state.bias_grad) db = ops::bias_grad(dy.dy, state.bias_target);
    input.work.wait();
    if (tp.splits_tokens() && input.dx.defined()) product.add_grad_through_update(dy, saved, input.dx);
    return gradients(input.dx, std::move(weights), {db, {}});
  }
};

// Forward ends with the one collective of a pair of layers (column, then row): the sum over the ranks. Bias and
// residual follow it, because inside the sum they would be added tp times.
struct RowLinear : Function<RowLinear> {
  // x [t, i/tp]; bias [o], residual [t, o] or [t/tp, o], or undefined -> [t, o] or [t/tp, o]
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList /*weights*/,
                            const MaybeTensor& bias, const MaybeTensor& residual, const LinearState& state) {
    const TensorParallel& tp = state.tp;
    const bool alone = tp.size() == 1;  // then the product can add bias and residual itself; else they follow the sum
    const ops::Addends added{bias.value_or(at::Tensor()), residual.value_or(at::Tensor())};
    Saved saved;
    const at::Tensor y = alone ? state.product->forward(x, added, saved) : summed_product(x, state, saved);
    if (state.make_x) saved.x.reset();
    ctx->save_for_backward(saved.all());
    ops::save_state(ctx, state);
    if (!alone) add_addends_(y, added);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& state = ops::saved_state<LinearState>(ctx);
    const TensorParallel& tp = state.tp;
    const at::Tensor own = grads[0].contiguous();
    at::Tensor dx, db;
    if (state.bias_grad) db = ops::bias_grad(own, state.bias_target);
    const Saved saved = Saved::from(ctx->get_saved_variables());
    const at::Tensor passed_on = state.has_residual ? grads[0] : at::Tensor();
    if (ctx->needs_input_grad(0))
      if (const auto slices = slices_for(state, own.size(0), state.weight->value.size(1))) {
        variable_list weights = sliced_backward(own, *slices, state, saved, dx);
        return gradients(dx, std::move(weights), {db, passed_on, {}});
      }
    const OutputGrad dy =
        state.product->output_grad(tp.splits_tokens() ? all_gather_rows(own, tp.group, "row linear backward") : own);
    // Weights first: a recomputed x is freed before dx, which is just as large, is allocated.
    variable_list weights = state.product->grad_weights(dy, saved, state.make_x);
    if (ctx->needs_input_grad(0)) dx = state.product->grad_input(dy, saved);
    return gradients(dx, std::move(weights), {db, passed_on, {}});
  }

 private:
  // Returns x Wᵀ summed over the ranks: [t, o], or this rank's rows of it.
  static at::Tensor summed_product(const at::Tensor& x, const LinearState& state, Saved& saved) {
    constexpr const char* kLabel = "row linear";
    const TensorParallel& tp = state.tp;
    const int64_t columns = state.weight->value.size(0);
    if (const auto slices = slices_for(state, x.size(0) / tp.size(), columns)) {
      state.product->save_for_blocks(x, saved);
      return multiply_and_scatter(x, columns, *slices, tp.group, kLabel,
                                  [&](const auto& out, const auto& in) { state.product->multiply_blocks(out, in); });
    }
    const at::Tensor partial = state.product->forward(x, {}, saved);
    if (tp.splits_tokens()) return reduce_scatter_rows(partial, tp.group, kLabel);
    tp.group.all_reduce(partial, comm::ReduceOp::kSum, kLabel);
    return partial;
  }

  // Backward with dy gathered in slices. dx comes first, since it overlaps with the gathers. The weight gradient is a
  // sum over tokens in any order: it takes dy as it was gathered, and x, tp times narrower, is copied into that order.
  static variable_list sliced_backward(const at::Tensor& own, const TokenSlices& slices, const LinearState& state,
                                       const Saved& saved, at::Tensor& dx) {
    const GatheredProduct gathered = gather_and_multiply(
        own, state.weight->value.size(1), slices, state.tp.group, "row linear backward",
        [&](const auto& out, const auto& in) { state.product->multiply_grad_blocks(out, in, saved); });
    dx = gathered.output;
    return state.product->grad_weights(
        {gathered.input}, saved,
        [slices, x = input_of(saved, state.make_x, *state.weight)] { return slices.in_slice_order(x()); });
  }
};

// The bias as an argument that autograd sees.
MaybeTensor value_of(const Parameter* bias) { return bias ? MaybeTensor(bias->value) : std::nullopt; }

// Collects what both layers keep. The gradient of the bias goes to its target, if it has one, and not to autograd.
LinearState state_of(Parameter& weight, Parameter* bias, ProductPtr product, const TensorParallel& tp) {
  LinearState state{.weight = &weight, .product = std::move(product), .tp = tp};
  if (!bias) return state;
  state.bias_target = bias->grad.target();
  state.bias_grad = bias->value.requires_grad();
  return state;
}

}  // namespace

at::Tensor column_linear(const at::Tensor& x, Parameter& weight, Parameter* bias, const TensorParallel& tp) {
  ProductInput input{.tokens = x.size(0)};
  if (tp.splits_tokens()) {
    input.tokens *= tp.size();
    input.shard = tp.share(input.tokens);
  }
  const ProductPtr product = make_product(weight, input, tp.fp8);
  const variable_list weights = product->weights();
  return ColumnLinear::apply(x, at::TensorList(weights), value_of(bias), state_of(weight, bias, product, tp));
}

at::Tensor row_linear(const at::Tensor& x, Parameter& weight, Parameter* bias, const at::Tensor& residual,
                      const TensorParallel& tp, std::function<at::Tensor()> make_x) {
  const ProductPtr product = make_product(weight, {.tokens = x.size(0), .split = true}, tp.fp8);
  const variable_list weights = product->weights();
  LinearState state = state_of(weight, bias, product, tp);
  state.has_residual = residual.defined();
  state.make_x = std::move(make_x);
  return RowLinear::apply(x, at::TensorList(weights), value_of(bias),
                          residual.defined() ? MaybeTensor(residual) : std::nullopt, state);
}

}  // namespace megalith::nn
