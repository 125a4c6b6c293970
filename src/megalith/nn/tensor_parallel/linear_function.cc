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
// row forward and the gather of row backward; and part of a fourth one, the reduce-scatter of column backward, if dW is
// shorter, frozen or deferred. TensorParallel::overlap hides them in two ways.
//
// In slices, where the product can be computed by blocks of rows and is large enough: a collective travels beside the
// product that reads or writes its tokens (sliced_product.h).
//
//   row, backward       gather dy in slices, each multiplied into dx when it arrives; then dW from all of them
//
// Beside weight gradients that are held (weight_grad_queue.h), in backward of a training step: layers leave dW in the
// queue, and the next collective that nothing else hides runs beside the oldest of them. In a transformer layer:
//
//   communication   gather dy   gather x  scatter dx   gather dy   gather x  scatter dx
//   computation     held dW     dx of up  dW of down   dW of up    dx of qkv dW of up      and so on
//                   of before                          (½)                   (½)
//
// Products then stay whole. Slices remain for the first layer of a pass, which finds nothing held.
//
// A product beside a collective leaves it the multiprocessors of its thread blocks (SparedMultiprocessors): otherwise
// the collective could only begin when the product ends.
#include "megalith/nn/tensor_parallel/linear_function.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <optional>

#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/parameter/weight_grad_queue.h"
#include "megalith/nn/tensor_parallel/fp8_history.h"
#include "megalith/nn/tensor_parallel/mappings.h"
#include "megalith/nn/tensor_parallel/product_internal.h"
#include "megalith/nn/tensor_parallel/sliced_product.h"
#include "megalith/ops/kernel/autograd_state.h"
#include "megalith/ops/update/gradient_sums.h"
#include "megalith/parallel/nccl_options.h"

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
  // Order of the tokens on the side of the layer that has all of them; nullopt: that of the sequences.
  std::optional<TokenSlices> order = {};

  RowOrder row_order() const { return order ? RowOrder::kSlices : RowOrder::kTokens; }
};

// Returns the result of a backward function in the order of forward's arguments: x, the weights, the others.
variable_list gradients(const at::Tensor& dx, variable_list weights, std::initializer_list<at::Tensor> others) {
  weights.insert(weights.begin(), dx);
  weights.insert(weights.end(), others);
  return weights;
}

// Returns the slices in which tokens travel beside a product with `columns` results per token, of which each rank holds
// `rows` rows; std::nullopt if they travel at once.
std::optional<TokenSlices> slices_for(const LinearState& state, int64_t rows, int64_t columns) {
  if (state.order) return state.order;
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

// Returns the slices of a collective that nothing is multiplied beside, on `rows` rows of each rank: those of the order
// that all tokens have, or one, which is that of the sequences.
TokenSlices transfer_slices(const LinearState& state, int64_t rows) {
  return state.order.value_or(TokenSlices(rows, state.tp.size(), 1));
}

// Returns what makes products with the weights of the layer's chunk leave room for a collective, if one is in flight.
ops::SparedMultiprocessors room_for(Beside beside, const LinearState& state) {
  const bool spares = state.tp.overlap && beside == Beside::kCollective;
  return {spares ? state.weight->plans : nullptr, parallel::kOverlappedCtas};
}
Beside beside_of(const SlicedTransfer& transfer) {
  return transfer.slices.empty() ? Beside::kNothing : Beside::kCollective;
}

// Returns the queue in which the layer leaves its weight gradient for a collective to run beside; nullptr if it does
// not. A weight with an update computes its gradients at once, and so does the head: gradients of logits are large.
WeightGradQueue* cover_of(const LinearState& state) {
  const GradientSlot& grad = state.weight->grad;
  if (!state.tp.overlap || !state.tp.splits_tokens() || grad.queue == nullptr || !grad.queue->covers()) return nullptr;
  if (!grad.main_grad.defined() || !state.weight->value.requires_grad()) return nullptr;
  const bool plain = state.product->weights().size() == 1 && !state.weight->spec.is_embedding_or_head;
  return plain ? grad.queue : nullptr;
}

// Returns the work that hides a collective on [t, columns], in elements of weights (WeightGradQueue::Holding).
double cover_unit(const at::Tensor& tokens, int64_t columns) {
  return cover_work(static_cast<double>(columns) * static_cast<double>(tokens.element_size()));
}

// dx while its reduction over tp is in flight; undefined if none is.
SlicedTransfer start_reducing(const at::Tensor& partial, const LinearState& state) {
  constexpr const char* kLabel = "column linear backward";
  const TensorParallel& tp = state.tp;
  if (tp.splits_tokens())
    return start_scatter(partial, transfer_slices(state, partial.size(0) / tp.size()), tp.group, kLabel);
  SlicedTransfer sum{partial, {}};
  sum.slices.push_back(tp.group.all_reduce_async(partial, comm::ReduceOp::kSum, kLabel));
  return sum;
}

// Returns the input of a deferred weight gradient, which is the next job that `queue` gets: gathered beside the job
// before it, and not now, because until then the shard alone is held.
MakeInput gathered_later(WeightGradQueue& queue, const at::Tensor& shard, const LinearState& state) {
  auto gather = std::make_shared<SlicedTransfer>();
  queue.start_ahead(
      [gather, group = state.tp.group, slices = transfer_slices(state, shard.size(0)), x = shard.detach()] {
        *gather = start_gather(x, slices, group, "column linear weight gradient");
      });
  return [gather] {
    gather->wait();
    return gather->result;
  };
}

// x of all tokens for the weight gradient: in flight, or to be gathered later if that gradient is deferred. Empty if
// backward has all it needs: without sequence parallelism, for frozen weights and in fp8.
struct GatheredInput {
  MakeInput make_x;
  SlicedTransfer transfer;
};
GatheredInput start_gathering(const LinearState& state, const Saved& saved) {
  const TensorParallel& tp = state.tp;
  if (!tp.splits_tokens() || !saved.x.defined() || !state.weight->value.requires_grad()) return {};
  if (state.weight->grad.defers()) return {gathered_later(*state.weight->grad.queue, saved.x, state), {}};
  SlicedTransfer transfer =
      start_gather(saved.x, transfer_slices(state, saved.x.size(0)), tp.group, "column linear backward input");
  return {[whole = transfer.result] { return whole; }, std::move(transfer)};
}

// Gathers x [t/tp, i] if the ranks hold shards of it, and returns x Wᵀ + addends [t, o/tp].
at::Tensor product_of_gathered(const at::Tensor& x, const ops::Addends& added, const LinearState& state, Saved& saved) {
  constexpr const char* kLabel = "column linear input";
  const TensorParallel& tp = state.tp;
  const Product& product = *state.product;
  const int64_t columns = state.weight->value.size(0);
  if (const auto slices = slices_for(state, x.size(0), columns)) {
    const auto multiply = [&](const at::Tensor& out, const at::Tensor& in, Beside collective) {
      const auto room = room_for(collective, state);
      product.multiply_blocks(out, in);
    };
    at::Tensor y = gather_and_multiply(x, columns, *slices, tp.group, kLabel, multiply, state.row_order()).output;
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
      [&](const at::Tensor& out, const at::Tensor& in, Beside collective) {
        const auto room = room_for(collective, state);
        state.product->multiply_grad_blocks(out, in, saved);
      },
      state.row_order());
}

// Computes the weight gradients, or leaves them in `cover`, if there is one.
variable_list grad_weights(const LinearState& state, const OutputGrad& dy, const Saved& saved, const MakeInput& make_x,
                           WeightGradQueue* cover, double unit) {
  const WeightGradQueue::Holding holding(cover, unit);
  return state.product->grad_weights(dy, saved, make_x);
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
    SlicedTransfer input;  // dx
    if (ctx->needs_input_grad(0)) input.result = sliced_input_grad(dy, state, saved);
    if (ctx->needs_input_grad(0) && !input.result.defined()) {
      const auto room = room_for(beside_of(gathered.transfer), state);
      const at::Tensor partial =
          tp.splits_tokens() ? product.grad_through_weight(dy, saved) : product.grad_input(dy, saved);  // [t, i]
      gathered.transfer.wait();
      input = start_reducing(partial, state);
    }
    gathered.transfer.wait();
    WeightGradQueue* const cover = cover_of(state);
    const double unit = cover_unit(dy.dy, state.weight->value.size(1));
    const auto room = room_for(beside_of(input), state);
    variable_list weights = grad_weights(state, dy, saved, gathered.make_x, cover, unit);
    at::Tensor db;
    if (state.bias_grad) db = ops::bias_grad(dy.dy, state.bias_target);
    if (cover != nullptr) cover->run_held(input.slices.empty() ? 0 : unit);
    input.wait();
    const at::Tensor& dx = input.result;
    if (tp.splits_tokens() && dx.defined()) product.add_grad_through_update(dy, saved, dx);
    return gradients(dx, std::move(weights), {db, {}});
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
    WeightGradQueue* const cover = cover_of(state);
    const double unit = cover_unit(own, own.size(1));
    const bool covered = cover != nullptr && cover->held() > 0;
    if (ctx->needs_input_grad(0) && !covered)
      if (const auto slices = slices_for(state, own.size(0), state.weight->value.size(1))) {
        variable_list weights = sliced_backward(own, *slices, state, saved, cover, dx);
        return gradients(dx, std::move(weights), {db, passed_on, {}});
      }
    const OutputGrad dy = state.product->output_grad(tp.splits_tokens() ? gathered_grad(own, state, cover, unit) : own);
    if (cover != nullptr) {
      dx = ctx->needs_input_grad(0) ? state.product->grad_input(dy, saved) : at::Tensor();
      variable_list weights = grad_weights(state, dy, saved, state.make_x, cover, unit);
      return gradients(dx, std::move(weights), {db, passed_on, {}});
    }
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
      const auto multiply = [&](const at::Tensor& out, const at::Tensor& in, Beside collective) {
        const auto room = room_for(collective, state);
        state.product->multiply_blocks(out, in);
      };
      return multiply_and_scatter(x, columns, *slices, tp.group, kLabel, multiply, state.row_order());
    }
    const at::Tensor partial = state.product->forward(x, {}, saved);
    if (tp.splits_tokens()) return reduce_scatter_rows(partial, tp.group, kLabel);
    tp.group.all_reduce(partial, comm::ReduceOp::kSum, kLabel);
    return partial;
  }

  // Gathers dy of all tokens beside weight gradients that `cover`, if there is one, holds.
  static at::Tensor gathered_grad(const at::Tensor& own, const LinearState& state, WeightGradQueue* cover,
                                  double unit) {
    SlicedTransfer gather =
        start_gather(own, transfer_slices(state, own.size(0)), state.tp.group, "row linear backward");
    if (cover != nullptr) {
      const auto room = room_for(Beside::kCollective, state);
      cover->run_held(unit);
    }
    gather.wait();
    return gather.result;
  }

  // Backward with dy gathered in slices. dx comes first, since it overlaps with the gathers. The weight gradient is a
  // sum over tokens in any order: it takes dy as it was gathered, and x, tp times narrower, is copied into that order
  // unless it has it already.
  static variable_list sliced_backward(const at::Tensor& own, const TokenSlices& slices, const LinearState& state,
                                       const Saved& saved, WeightGradQueue* cover, at::Tensor& dx) {
    const GatheredProduct gathered = gather_and_multiply(
        own, state.weight->value.size(1), slices, state.tp.group, "row linear backward",
        [&](const at::Tensor& out, const at::Tensor& in, Beside collective) {
          const auto room = room_for(collective, state);
          state.product->multiply_grad_blocks(out, in, saved);
        },
        state.row_order());
    dx = gathered.output;
    MakeInput x = input_of(saved, state.make_x, *state.weight);
    if (!state.order) x = [slices, x] { return slices.in_slice_order(x()); };
    return grad_weights(state, {gathered.input}, saved, x, cover, cover_unit(own, own.size(1)));
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

// Whether a layer multiplies by the weight in blocks of rows; see Product::by_blocks.
bool multiplies_blocks(const Parameter& weight, const TensorParallel& tp) {
  return !applies_fp8(tp.fp8, weight.value) && !weight.attached.bytes && !weight.attached.quantized &&
         active_update(weight) == nullptr;
}

}  // namespace

std::optional<TokenSlices> common_slices(int64_t tokens, const Parameter& up, const Parameter& down,
                                         const TensorParallel& tp) {
  if (!tp.overlap || !tp.splits_tokens() || !multiplies_blocks(up, tp) || !multiplies_blocks(down, tp)) return {};
  const int64_t rows = tokens / tp.size();
  const auto count = [&](const Parameter& weight) {
    return slice_count(rows, tp.size(), weight.value.size(0), weight.value.is_cuda(), tp.slices);
  };
  const int64_t both = std::min(count(up), count(down));
  return both > 1 ? std::optional(TokenSlices(rows, tp.size(), both)) : std::nullopt;
}

at::Tensor column_linear(const at::Tensor& x, Parameter& weight, Parameter* bias, const TensorParallel& tp,
                         const std::optional<TokenSlices>& order) {
  ProductInput input{.tokens = x.size(0)};
  if (tp.splits_tokens()) {
    input.tokens *= tp.size();
    input.shard = tp.share(input.tokens);
  }
  const ProductPtr product = make_product(weight, input, tp.fp8);
  const variable_list weights = product->weights();
  LinearState state = state_of(weight, bias, product, tp);
  state.order = order;
  return ColumnLinear::apply(x, at::TensorList(weights), value_of(bias), std::move(state));
}

at::Tensor row_linear(const at::Tensor& x, Parameter& weight, Parameter* bias, const at::Tensor& residual,
                      const TensorParallel& tp, std::function<at::Tensor()> make_x,
                      const std::optional<TokenSlices>& order) {
  const ProductPtr product = make_product(weight, {.tokens = x.size(0), .split = true}, tp.fp8);
  const variable_list weights = product->weights();
  LinearState state = state_of(weight, bias, product, tp);
  state.has_residual = residual.defined();
  state.make_x = std::move(make_x);
  state.order = order;
  return RowLinear::apply(x, at::TensorList(weights), value_of(bias),
                          residual.defined() ? MaybeTensor(residual) : std::nullopt, state);
}

}  // namespace megalith::nn
