// Products in fp8. Tensor cores multiply fp8 matrices only if both are contiguous along the summed dimension, and the
// three products sum over different ones:
//
//   y  = x Wᵀ    over i    x by rows, W by rows
//   dx = dy W    over o    dy by rows, W by columns
//   dW = dyᵀ x   over t    dy by columns, x by columns
//
// So a cast writes rows, columns or both (Orders). Forward keeps x by columns, one byte per element, instead of x
// itself. Forward uses fast accumulation; gradients do not.
//
// All three sizes of a product must be multiples of a number that depends on the recipe. Tokens are padded to it with
// rows of zeros, which change neither scales nor sums; results lose them again. Widths are the model's: where they do
// not fit, make_product takes a dense product.
//
// A weight that is kept in fp8 (parameter/fp8_value.h) is not cast: forward takes its bytes, backward transposes them.
//
// A recipe without weight gradients computes dW from x and dy as they are. Forward then keeps x itself.
#include <ATen/ATen.h>

#include "megalith/nn/parameter/fp8_value.h"
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
// itself, which backward casts again with the same scale. Saved::x is set only if dW is not computed in fp8.
enum Fp8Saved : size_t {
  kInputColumns,       // [i, t] in fp8, t padded; undefined if no gradient is computed from it
  kInputInverseScale,  // as in Fp8Matrix
  kWeight,             // [o, i]
  kWeightScale         // fp32 [1]; undefined if it is computed again, or not needed
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
    const Fp8Matrix x8 = cast(padded(x), Fp8History::kInput, record_, {true, fp8_weight_grad()});
    const Fp8Matrix w8 = weight_.attached.bytes
                             ? Fp8Matrix{.rows = weight, .inverse_scale = weight_.attached.bytes->inverse_scale}
                             : cast(weight, Fp8History::kWeight, record_, {true, false});
    at::Tensor y = ops::fp8_mm(x8.rows, x8.inverse_scale, w8.rows, w8.inverse_scale, x.scalar_type(), /*fast=*/true,
                               weight_.kernels())
                       .narrow(0, 0, x.size(0));
    add_addends_(y, added);
    if (weight_.value.requires_grad() && !recipe_.weight_gradients) saved.x = x;
    saved.own = {x8.columns, x8.columns_inverse_scale, weight, w8.scale};
    return y;
  }

  OutputGrad output_grad(const at::Tensor& dy) const override {
    return {dy, cast(padded(dy), Fp8History::kGradient, /*record=*/true, {true, fp8_weight_grad()})};
  }

  at::Tensor grad_through_weight(const OutputGrad& dy, const Saved& saved) const override {
    const Fp8Matrix w8 = weight_by_columns(saved);
    return ops::fp8_mm(dy.in_fp8.rows, dy.in_fp8.inverse_scale, w8.columns, w8.columns_inverse_scale,
                       dy.dy.scalar_type(), /*fast=*/false, weight_.kernels())
        .narrow(0, 0, dy.dy.size(0));
  }

  std::vector<at::Tensor> grad_weights(const OutputGrad& dy, const Saved& saved,
                                       const MakeInput& make_x) const override {
    if (!weight_.value.requires_grad()) return {at::Tensor()};
    if (!recipe_.weight_gradients)
      return {weight_.grad.now_or_later([&weight = weight_, dy = dy.dy, x = input_of(saved, make_x, weight_)] {
        return weight.add_weight_grad(dy, x());
      })};
    return {weight_.grad.now_or_later([&weight = weight_, dy = dy.in_fp8, x = saved.own[kInputColumns],
                                       x_inverse_scale = saved.own[kInputInverseScale]] {
      return add_fp8_weight_grad(weight, dy, x, x_inverse_scale);
    })};
  }

 private:
  // Whether dW is computed, and from casts.
  bool fp8_weight_grad() const { return weight_.value.requires_grad() && recipe_.weight_gradients; }

  // Returns the weight as backward multiplies it, from what forward has saved.
  Fp8Matrix weight_by_columns(const Saved& saved) const {
    const at::Tensor& weight = saved.own[kWeight];
    if (weight_.attached.bytes) {
      const at::Tensor& inverse = weight_.attached.bytes->inverse_scale;  // changes between steps only
      return {.columns = weight.view(at::kByte).t().contiguous().view(weight.scalar_type()),
              .columns_inverse_scale = inverse.dim() == 2 ? inverse.t().contiguous() : inverse};
    }
    if (recipe_.scaling == Fp8Scaling::kBlocks)
      return ops::to_fp8_blocks(weight, Fp8Kind::kE4m3, Fp8Blocks::kSquares, /*rows=*/false, /*columns=*/true);
    return ops::to_fp8(weight, {.rows = false, .scale = saved.own[kWeightScale]});
  }

  // Returns x [t, …] with rows of zeros up to the next multiple of tokens, at least one; x itself if it is one.
  at::Tensor padded(const at::Tensor& x) const {
    const int64_t multiple = ops::fp8_token_multiple(recipe_.scaling), beyond = x.size(0) % multiple;
    return beyond == 0 && x.size(0) > 0 ? x : at::constant_pad_nd(x, {0, 0, 0, multiple - beyond});
  }

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

  Parameter& weight_;
  const Fp8Recipe recipe_;
  const bool record_;
};

}  // namespace

at::Tensor add_fp8_weight_grad(Parameter& weight, const Fp8Matrix& dy, const at::Tensor& x,
                               const at::Tensor& x_inverse_scale) {
  if (!weight.grad.main_grad.defined())
    return ops::fp8_mm(dy.columns, dy.columns_inverse_scale, x, x_inverse_scale, weight.value.scalar_type(),
                       /*fast=*/false, weight.kernels());
  ops::add_fp8_mm(weight.grad.main_grad, dy.columns, dy.columns_inverse_scale, x, x_inverse_scale,
                  weight.grad.stale ? 0 : 1, weight.kernels());
  weight.grad.stale = false;
  return {};
}

ProductPtr fp8_product(Parameter& weight, const Fp8Recipe& recipe, bool record) {
  return std::make_shared<Fp8Product>(weight, recipe, record);
}

}  // namespace megalith::nn
