#include "megalith/nn/tensor_parallel/fp8_linear.h"

#include <ATen/ATen.h>

#include "megalith/nn/tensor_parallel/fp8_history.h"
#include "megalith/ops/gemm/fp8_blocks.h"

namespace megalith::nn {

using ops::Fp8Blocks;
using ops::Fp8Cast;
using ops::Fp8Kind;
using ops::Fp8Matrix;
using ops::Fp8Recipe;
using ops::Fp8Scaling;

namespace {

struct Orders {
  bool rows, columns;
};

Fp8Matrix cast(const at::Tensor& x, Fp8History::Tensor which, const Parameter& weight, const Fp8Recipe& recipe,
               bool record, Orders orders) {
  const Fp8Kind kind = which == Fp8History::kGradient ? recipe.gradients() : Fp8Kind::kE4m3;
  if (recipe.scaling == Fp8Scaling::kBlocks)
    return ops::to_fp8_blocks(x, kind, which == Fp8History::kWeight ? Fp8Blocks::kSquares : Fp8Blocks::kStrips,
                              orders.rows, orders.columns);
  Fp8Cast how = weight.fp8 ? weight.fp8->cast(which, record) : Fp8Cast{.kind = kind};
  how.rows = orders.rows;
  how.columns = orders.columns;
  return ops::to_fp8(x, how);
}

}  // namespace

bool applies_fp8(const std::optional<Fp8Recipe>& recipe, const at::Tensor& x, const at::Tensor& weight) {
  if (!recipe) return false;
  if (recipe->scaling == Fp8Scaling::kBlocks) return ops::fits_fp8_blocks(x.size(0), x.size(1), weight.size(0));
  return ops::fits_fp8(x.size(0), x.size(1)) && ops::fits_fp8(weight.size(0), weight.size(1));
}

Fp8Forward fp8_forward(const at::Tensor& x, const Parameter& weight, const Fp8Recipe& recipe, bool record) {
  const Fp8Matrix x8 = cast(x, Fp8History::kInput, weight, recipe, record, {true, true});
  const Fp8Matrix w8 = cast(weight.value.detach(), Fp8History::kWeight, weight, recipe, record, {true, false});
  return {.y = ops::fp8_mm(x8.rows, x8.inverse_scale, w8.rows, w8.inverse_scale, x.scalar_type(), /*fast=*/true),
          .factors = {x8.columns, x8.columns_inverse_scale, weight.value.detach(), w8.scale}};
}

Fp8Matrix fp8_gradient(const at::Tensor& dy, const Parameter& weight, const Fp8Recipe& recipe) {
  return cast(dy, Fp8History::kGradient, weight, recipe, /*record=*/true, {true, true});
}

at::Tensor fp8_grad_x(const Fp8Matrix& dy, const Fp8Factors& factors, const Fp8Recipe& recipe, at::ScalarType dtype) {
  const Fp8Matrix w8 = recipe.scaling == Fp8Scaling::kBlocks
                           ? ops::to_fp8_blocks(factors.weight, Fp8Kind::kE4m3, Fp8Blocks::kSquares, false, true)
                           : ops::to_fp8(factors.weight, {.rows = false, .scale = factors.w_scale});
  return ops::fp8_mm(dy.rows, dy.inverse_scale, w8.columns, w8.columns_inverse_scale, dtype, /*fast=*/false);
}

at::Tensor add_fp8_weight_grad(Parameter& weight, const Fp8Matrix& dy, const Fp8Factors& factors) {
  const auto product = [&](at::ScalarType dtype) {
    return ops::fp8_mm(dy.columns, dy.columns_inverse_scale, factors.x_columns, factors.x_inverse_scale, dtype,
                       /*fast=*/false);
  };
  if (!weight.main_grad.defined()) return product(weight.value.scalar_type());
  if (weight.main_grad_is_stale)
    ops::fp8_mm_out(weight.main_grad, dy.columns, dy.columns_inverse_scale, factors.x_columns, factors.x_inverse_scale);
  else
    weight.main_grad.add_(product(weight.main_grad.scalar_type()));
  weight.main_grad_is_stale = false;
  return {};
}

}  // namespace megalith::nn
