// Product: how a linear layer multiplies by its weight, y = x Wᵀ. Layers handle collectives and biases; the product
// with a weight on one rank is implemented here, once for all layers:
//
//   class             y                       dx                  weights
//   DenseProduct      x Wᵀ                    dy W                W
//   Fp8Product        the same with factors cast to fp8           W
//   QuantizedProduct  the same with W kept in 4 or 8 bits        W   (frozen)
//   LowRankProduct    x Wᵀ + s (x Aᵀ) Bᵀ      dy W + s (dy B) A   W, A, B   (x Wᵀ, dy W also in fewer bits)
//   DoraProduct       c ∘ (x Wᵀ + s (x Aᵀ) Bᵀ)   (c ∘ dy) W + s ((c ∘ dy) B) A   W, A, B, m   (c = m / norms of rows)
//   GroupedProduct    x_n W_nᵀ of every group of rows             W   (moe/grouped_product.h)
//
// All of them defer weight gradients if the weight has a queue that records (zero-bubble schedules). So a layer that
// multiplies through a Product gets fp8, LoRA and deferred weight gradients for free:
//
//   struct MyLinear : Function<MyLinear> {
//     static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, at::TensorList, ProductPtr product) {
//       Saved saved;
//       at::Tensor y = product->forward(x, {}, saved);
//       ctx->save_for_backward(saved.all());
//       ops::save_state(ctx, product);
//       return y;
//     }
//     static variable_list backward(AutogradContext* ctx, variable_list grads) {
//       const auto& product = *ops::saved_state<ProductPtr>(ctx);
//       const Saved saved = Saved::from(ctx->get_saved_variables());
//       const OutputGrad dy = product.output_grad(grads[0].contiguous());
//       variable_list result = product.grad_weights(dy, saved);
//       result.insert(result.begin(), ctx->needs_input_grad(0) ? product.grad_input(dy, saved) : at::Tensor());
//       result.emplace_back();  // of `product`
//       return result;
//     }
//   };
//   y = MyLinear::apply(x, at::TensorList(product->weights()), product);
//
// This is local_product(x, product) below; layers write their own to place collectives in between.
//
// Legend: t tokens, i inputs, o outputs, r rank and m modules of an update (parameter/low_rank.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "megalith/nn/parameter/parameter.h"
#include "megalith/ops/gemm/fp8.h"
#include "megalith/ops/gemm/gemm.h"

namespace megalith::nn {

// Tensors that forward saves for backward. A layer passes all() to autograd, and restores it with from() in backward.
struct Saved {
  at::Tensor x;                 // forward's input if backward needs it, otherwise undefined. A layer may replace it by
                                // this rank's share of its rows, or drop it and pass `make_x` to grad_weights
  std::vector<at::Tensor> own;  // tensors private to the kind of product

  std::vector<at::Tensor> all() const;
  static Saved from(std::vector<at::Tensor> all);
};

// The gradient of a product's output, with the intermediate results that the steps of backward share.
struct OutputGrad {
  at::Tensor dy;               // [t, o], contiguous
  ops::Fp8Matrix in_fp8 = {};  // dy cast to fp8, for an Fp8Product
  at::Tensor hidden = {};      // s · dy B [t, m r]: the gradient of an update's x Aᵀ; undefined without an update
  at::Tensor scaled = {};      // dy with every column times the scale of its row of W [t, o], for a DoraProduct
};

// Recomputes an input for one weight gradient: in backward, or later if that gradient is deferred.
using MakeInput = std::function<at::Tensor()>;

// One product of one forward pass, and its backward. Holds no activations. The weight outlives it, as the model
// outlives every autograd graph.
class Product {
 public:
  virtual ~Product() = default;

  // Returns the tensors that autograd must know, W first.
  virtual std::vector<at::Tensor> weights() const = 0;
  // x [t, i] -> x Wᵀ + addends [t, o]. Runs without autograd, like all functions below.
  virtual at::Tensor forward(const at::Tensor& x, const ops::Addends& added, Saved& saved) const = 0;

  // ---- Backward: output_grad first, then the others in any order
  virtual OutputGrad output_grad(const at::Tensor& dy) const { return {dy}; }
  // Returns dx [t, i].
  at::Tensor grad_input(const OutputGrad& dy, const Saved& saved) const;
  // Returns the gradients of weights() in their order, each computed now or left in its parameter's queue. A gradient
  // is undefined if the weight is not trained, or if it is (or will be) in main_grad. `make_x` returns forward's x;
  // without it, that is saved.x.
  virtual std::vector<at::Tensor> grad_weights(const OutputGrad& dy, const Saved& saved,
                                               const MakeInput& make_x = {}) const = 0;

  // grad_input in two steps, for layers that sum dx over ranks: dy W [t, i], then dx += hidden · A in place. Summing
  // `hidden` over the ranks between the two moves m r numbers per token instead of the i numbers of dx.
  virtual at::Tensor grad_through_weight(const OutputGrad& dy, const Saved& saved) const = 0;
  virtual void add_grad_through_update(const OutputGrad& /*dy*/, const Saved& /*saved*/,
                                       const at::Tensor& /*dx*/) const {}

  // ---- By blocks of rows, for layers that overlap a product with collectives (sliced_product.h)
  // Returns whether the functions below can replace forward and grad_through_weight. Only a product that is nothing but
  // x Wᵀ can: scales of fp8 depend on all rows, and an update needs them for products of its own.
  virtual bool by_blocks() const { return false; }
  // Fills `saved` as forward does; the caller computes the product by calls of multiply_blocks.
  virtual void save_for_blocks(const at::Tensor& x, Saved& saved) const;
  // [blocks, rows, i] -> [blocks, rows, o]: x Wᵀ.
  virtual void multiply_blocks(const at::Tensor& y, const at::Tensor& x) const;
  // [blocks, rows, o] -> [blocks, rows, i]: dy W.
  virtual void multiply_grad_blocks(const at::Tensor& dx, const at::Tensor& dy, const Saved& saved) const;
};
using ProductPtr = std::shared_ptr<const Product>;

// Facts about the input x that only the layer knows.
struct ProductInput {
  int64_t tokens = 0;  // in forward
  bool split = false;  // the tensor-parallel ranks have different columns or tokens; otherwise all have the same x
  std::optional<std::pair<int64_t, int64_t>> shard =
      {};  // {first, count} of the tokens that backward sees; nullopt = all
};

// Returns the product with `weight`: from its 4 or 8 bits if it is kept so (parameter/quantized_value.h), in fp8 if
// `fp8` asks for it and the sizes of the weight allow it (fp8_history.h), plus its low-rank update if one is active. A
// layer that passes `fp8` has called attach_fp8 for the weight. Call it outside autograd functions, where the gradient
// mode is that of the layer.
ProductPtr make_product(Parameter& weight, const ProductInput& input, const std::optional<ops::Fp8Recipe>& fp8 = {});

// Applies the product with autograd and without collectives. With `make_x` its input is not kept for backward.
at::Tensor local_product(const at::Tensor& x, ProductPtr product, MakeInput make_x = {});
// The same plus a bias [o] and a residual [t, o], which the product adds itself; either may be absent.
at::Tensor local_linear(const at::Tensor& x, ProductPtr product, Parameter* bias, const at::Tensor& residual,
                        MakeInput make_x = {});

}  // namespace megalith::nn
