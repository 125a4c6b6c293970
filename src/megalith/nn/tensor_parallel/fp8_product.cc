// Products in fp8. Tensor cores multiply fp8 matrices only if both are contiguous along the summed dimension, and the
// three products sum over different ones:
//
//   y  = x Wᵀ    over i    x by rows, W by rows
//   dx = dy W    over o    dy by rows, W by columns
//   dW = dyᵀ x   over t    dy by columns, x by columns
//
// So a cast writes rows, columns or both (Orders). Forward keeps x by columns, one byte per element, instead of x
// itself. Forward uses fast accumulation; gradients do not.
#include <ATen/ATen.h>

#include "megalith/nn/tensor_parallel/fp8_history.h"
#include "megalith/nn/tensor_parallel/product_internal.h"
#include "megalith/ops/gemm/fp8_blocks.h"

namespace megalith::nn {

using ops::Fp8Blocks;
using ops::Fp8Cast;
using ops::Fp8Kind;
using ops::Fp8Matrix;
using ops::Fp8Recipe;
using ops::Fp8Scaling;

namespace {

// Indices of the tensors that forward keeps in Saved::own: x in the order in which backward reads it, and the weight
// itself, which backward casts again with the same scale. Saved::x stays undefined.
enum Fp8Saved : size_t {
  kInputColumns,       // [i, t] in fp8; undefined if the weight is frozen
  kInputInverseScale,  // as in Fp8Matrix
  kWeight,             // [o, i]
  kWeightScale         // fp32 [1]; undefined if it is computed again
};

// The orders that a cast writes; each costs a byte of memory traffic per element.
struct Orders {
  bool rows, columns;
};

class Fp8Product final : public Product {
 public:
  Fp8Product(Parameter& weight, const Fp8Recipe& recipe, bool record)
      : weight_(weight), recipe_(recipe), record_(record) {}

  std::vector<at::Tensor> weights() const override { return {weight_.value}; }

  at::Tensor forward(const at::Tensor& x, const ops::Addends& added, Saved& saved) const override {
    const at::Tensor weight = weight_.value.detach();
    const Fp8Matrix x8 = cast(x, Fp8History::kInput, record_, {true, true});
    const Fp8Matrix w8 = cast(weight, Fp8History::kWeight, record_, {true, false});
    at::Tensor y = ops::fp8_mm(x8.rows, x8.inverse_scale, w8.rows, w8.inverse_scale, x.scalar_type(), /*fast=*/true);
    add_addends_(y, added);
    const bool trained = weight_.value.requires_grad();
    saved.own = {trained ? x8.columns : at::Tensor(), x8.columns_inverse_scale, weight, w8.scale};
    return y;
  }

  OutputGrad output_grad(const at::Tensor& dy) const override {
    return {dy, cast(dy, Fp8History::kGradient, /*record=*/true, {true, true})};
  }

  at::Tensor grad_through_weight(const OutputGrad& dy, const Saved& saved) const override {
    const Fp8Matrix w8 = recipe_.scaling == Fp8Scaling::kBlocks
                             ? ops::to_fp8_blocks(saved.own[kWeight], Fp8Kind::kE4m3, Fp8Blocks::kSquares, false, true)
                             : ops::to_fp8(saved.own[kWeight], {.rows = false, .scale = saved.own[kWeightScale]});
    return ops::fp8_mm(dy.in_fp8.rows, dy.in_fp8.inverse_scale, w8.columns, w8.columns_inverse_scale,
                       dy.dy.scalar_type(), /*fast=*/false);
  }

  std::vector<at::Tensor> grad_weights(const OutputGrad& dy, const Saved& saved,
                                       const MakeInput& /*make_x*/) const override {
    if (!weight_.value.requires_grad()) return {at::Tensor()};
    return {weight_.grad.now_or_later(
        [&weight = weight_, dy = dy.in_fp8, x = saved.own[kInputColumns],
         x_inverse_scale = saved.own[kInputInverseScale]] { return add_weight_grad(weight, dy, x, x_inverse_scale); })};
  }

 private:
  // Casts x with the scaling of the recipe: blocks, the history's scale (delayed), or a scale from x itself.
  Fp8Matrix cast(const at::Tensor& x, Fp8History::Tensor which, bool record, Orders orders) const {
    const Fp8Kind kind = which == Fp8History::kGradient ? recipe_.gradients() : Fp8Kind::kE4m3;
    if (recipe_.scaling == Fp8Scaling::kBlocks)
      return ops::to_fp8_blocks(x, kind, which == Fp8History::kWeight ? Fp8Blocks::kSquares : Fp8Blocks::kStrips,
                                orders.rows, orders.columns);
    Fp8Cast how = weight_.attached.fp8 ? weight_.attached.fp8->cast(which, record) : Fp8Cast{.kind = kind};
    how.rows = orders.rows;
    how.columns = orders.columns;
    return ops::to_fp8(x, how);
  }

  // Computes dyᵀ x [o, i]; otherwise like Parameter::add_weight_grad.
  static at::Tensor add_weight_grad(Parameter& weight, const Fp8Matrix& dy, const at::Tensor& x,
                                    const at::Tensor& x_inverse_scale) {
    const auto product = [&](at::ScalarType dtype) {
      return ops::fp8_mm(dy.columns, dy.columns_inverse_scale, x, x_inverse_scale, dtype, /*fast=*/false);
    };
    if (!weight.grad.main_grad.defined()) return product(weight.value.scalar_type());
    // Overwriting writes the product straight into main_grad; adding needs a temporary.
    if (weight.grad.stale)
      ops::fp8_mm_out(weight.grad.main_grad, dy.columns, dy.columns_inverse_scale, x, x_inverse_scale);
    else
      weight.grad.main_grad.add_(product(weight.grad.main_grad.scalar_type()));
    weight.grad.stale = false;
    return {};
  }

  Parameter& weight_;
  const Fp8Recipe recipe_;
  const bool record_;
};

}  // namespace

bool applies_fp8(const std::optional<Fp8Recipe>& recipe, int64_t tokens, const at::Tensor& weight) {
  if (!recipe) return false;
  const int64_t inputs = weight.size(1);
  if (recipe->scaling == Fp8Scaling::kBlocks) return ops::fits_fp8_blocks(tokens, inputs, weight.size(0));
  return ops::fits_fp8(tokens, inputs) && ops::fits_fp8(weight.size(0), inputs);
}

ProductPtr fp8_product(Parameter& weight, const Fp8Recipe& recipe, bool record) {
  return std::make_shared<Fp8Product>(weight, recipe, record);
}

}  // namespace megalith::nn
