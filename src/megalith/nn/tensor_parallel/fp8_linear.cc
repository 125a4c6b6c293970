#include "megalith/nn/tensor_parallel/fp8_linear.h"

#include <ATen/ATen.h>

namespace megalith::nn {

using ops::Fp8Format;
using ops::Fp8Kind;
using ops::Fp8Matrix;

bool applies_fp8(const std::optional<Fp8Format>& format, const at::Tensor& x, const at::Tensor& weight) {
  return format && ops::fits_fp8(x.size(0), x.size(1)) && ops::fits_fp8(weight.size(0), weight.size(1));
}

Fp8Forward fp8_forward(const at::Tensor& x, const at::Tensor& weight) {
  const Fp8Matrix x8 = ops::to_fp8(x, Fp8Kind::kE4m3), w8 = ops::to_fp8(weight, Fp8Kind::kE4m3);
  return {.y = ops::fp8_mm(x8.rows, x8.inverse_scale, w8.rows, w8.inverse_scale, x.scalar_type(), /*fast=*/true),
          .factors = {x8.columns, x8.inverse_scale, w8.columns, w8.inverse_scale}};
}

Fp8Matrix fp8_gradient(const at::Tensor& dy, Fp8Format format) {
  return ops::to_fp8(dy, format == Fp8Format::kHybrid ? Fp8Kind::kE5m2 : Fp8Kind::kE4m3);
}

at::Tensor fp8_grad_x(const Fp8Matrix& dy, const Fp8Factors& factors, at::ScalarType dtype) {
  return ops::fp8_mm(dy.rows, dy.inverse_scale, factors.w_columns, factors.w_inverse_scale, dtype, /*fast=*/false);
}

at::Tensor add_fp8_weight_grad(Parameter& weight, const Fp8Matrix& dy, const Fp8Factors& factors) {
  const auto product = [&](at::ScalarType dtype) {
    return ops::fp8_mm(dy.columns, dy.inverse_scale, factors.x_columns, factors.x_inverse_scale, dtype,
                       /*fast=*/false);
  };
  if (!weight.main_grad.defined()) return product(weight.value.scalar_type());
  if (weight.main_grad_is_stale)
    ops::fp8_mm_out(weight.main_grad, dy.columns, dy.inverse_scale, factors.x_columns, factors.x_inverse_scale);
  else
    weight.main_grad.add_(product(weight.main_grad.scalar_type()));
  weight.main_grad_is_stale = false;
  return {};
}

}  // namespace megalith::nn
