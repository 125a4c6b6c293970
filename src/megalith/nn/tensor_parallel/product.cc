// Code that all kinds of products share, and the choice between them. An active low-rank update is added to a dense
// product or to one in fp8; its own products, which are narrow, stay in the dtype of the activations.
#include "megalith/nn/tensor_parallel/product.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "megalith/base/error.h"
#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/tensor_parallel/fp8_history.h"
#include "megalith/nn/tensor_parallel/product_internal.h"
#include "megalith/ops/kernel/autograd_state.h"
#include "megalith/ops/update/gradient_sums.h"

namespace megalith::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using MaybeTensor = std::optional<at::Tensor>;  // an argument that autograd may leave out

// State of LocalProduct; an empty make_x means that x is kept.
struct LocalState {
  ProductPtr product;
  MakeInput make_x;
  ops::GradTarget bias_target = {};
  bool bias_grad = false;     // a bias was given and requires a gradient
  bool has_residual = false;  // a residual was given
};

// The function of the header's example: a product on one rank, for replicated weights and experts. The product itself
// adds bias and residual.
struct LocalProduct : torch::autograd::Function<LocalProduct> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList /*weights*/,
                            const MaybeTensor& bias, const MaybeTensor& residual, LocalState state) {
    Saved saved;
    at::Tensor y = state.product->forward(x, {bias.value_or(at::Tensor()), residual.value_or(at::Tensor())}, saved);
    if (state.make_x) saved.x.reset();
    ctx->save_for_backward(saved.all());
    ops::save_state(ctx, std::move(state));
    return y;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const auto& state = ops::saved_state<LocalState>(ctx);
    const Saved saved = Saved::from(ctx->get_saved_variables());
    const OutputGrad dy = state.product->output_grad(grads[0].contiguous());
    // Weights first: a recomputed x is freed before dx, which is just as large, is allocated.
    variable_list result = state.product->grad_weights(dy, saved, state.make_x);
    result.insert(result.begin(), ctx->needs_input_grad(0) ? state.product->grad_input(dy, saved) : at::Tensor());
    result.push_back(state.bias_grad ? ops::bias_grad(dy.dy, state.bias_target) : at::Tensor());
    result.push_back(state.has_residual ? grads[0] : at::Tensor());
    result.emplace_back();  // no gradient for the state
    return result;
  }
};

// by_blocks() is false for this kind of product.
[[noreturn]] void throw_not_by_blocks() {
  throw InternalError("a product was asked for blocks that it cannot compute");
}

}  // namespace

// x comes first, so that from() can tell it apart whatever the number of the product's own tensors.
std::vector<at::Tensor> Saved::all() const {
  std::vector<at::Tensor> tensors{x};
  tensors.insert(tensors.end(), own.begin(), own.end());
  return tensors;
}

Saved Saved::from(std::vector<at::Tensor> all) {
  Saved saved{std::move(all[0]), {}};
  all.erase(all.begin());
  saved.own = std::move(all);
  return saved;
}

at::Tensor Product::grad_input(const OutputGrad& dy, const Saved& saved) const {
  at::Tensor dx = grad_through_weight(dy, saved);
  add_grad_through_update(dy, saved, dx);
  return dx;
}

void Product::save_for_blocks(const at::Tensor&, Saved&) const { throw_not_by_blocks(); }
void Product::multiply_blocks(const at::Tensor&, const at::Tensor&) const { throw_not_by_blocks(); }
void Product::multiply_grad_blocks(const at::Tensor&, const at::Tensor&, const Saved&) const { throw_not_by_blocks(); }

// The function holds x by value. If it outlives backward, in a queue, it holds x without its history, which holds more.
MakeInput input_of(const Saved& saved, const MakeInput& make_x, const Parameter& parameter) {
  if (make_x) return make_x;
  return [x = saved.x.defined() && parameter.grad.queue != nullptr ? saved.x.detach() : saved.x] { return x; };
}

void add_addends_(const at::Tensor& y, const ops::Addends& added) {
  if (added.residual.defined() && added.bias.defined())
    ops::add_bias_residual_(y, added.bias, added.residual);
  else if (added.residual.defined())
    y.add_(added.residual);
  else if (added.bias.defined())
    y.add_(added.bias);
}

ProductPtr make_product(Parameter& weight, const ProductInput& input, const std::optional<ops::Fp8Recipe>& fp8) {
  // Without tokens there is nothing to round; but bytes can be multiplied in no other way.
  const bool in_fp8 = applies_fp8(fp8, weight.value) && (input.tokens > 0 || weight.attached.bytes);
  ProductPtr product = weight.attached.quantized ? quantized_product(weight)
                       : in_fp8                  ? fp8_product(weight, *fp8, at::GradMode::is_enabled())
                                                 : dense_product(weight);
  const LowRank* update = active_update(weight);
  if (update == nullptr) return product;
  if (update->magnitude != nullptr) {
    check(!in_fp8, "{} has magnitudes and is in fp8", weight.spec.name);
    return dora_product(weight, std::move(product), *update, low_rank_factors(*update), input);
  }
  return low_rank_product(std::move(product), *update, low_rank_factors(*update), input);
}

at::Tensor local_product(const at::Tensor& x, ProductPtr product, MakeInput make_x) {
  return local_linear(x, std::move(product), nullptr, {}, std::move(make_x));
}

at::Tensor local_linear(const at::Tensor& x, ProductPtr product, Parameter* bias, const at::Tensor& residual,
                        MakeInput make_x) {
  const std::vector<at::Tensor> weights = product->weights();
  LocalState state{.product = std::move(product), .make_x = std::move(make_x), .has_residual = residual.defined()};
  MaybeTensor offset, added;
  if (bias) {
    offset = bias->value;
    state.bias_target = bias->grad.target();
    state.bias_grad = bias->value.requires_grad();
  }
  if (residual.defined()) added = residual;
  return LocalProduct::apply(x, at::TensorList(weights), offset, added, std::move(state));
}

}  // namespace megalith::nn
