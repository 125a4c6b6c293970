#include "megalith/ops/fp8.h"

#include <ATen/ATen.h>

#include "megalith/base/error.h"
#include "megalith/ops/device_internal.h"
#include "megalith/ops/fp8_internal.h"
#include "megalith/ops/tensor_internal.h"

namespace megalith::ops {

namespace {

at::ScalarType dtype_of(Fp8Kind kind) {
  return kind == Fp8Kind::kE4m3 ? at::ScalarType::Float8_e4m3fn : at::ScalarType::Float8_e5m2;
}
double reach_of(Fp8Kind kind) { return kind == Fp8Kind::kE4m3 ? 448.0 : 57344.0; }

// What the CUDA kernels do, in ATen's operations.
Fp8Matrix cast_composite(const at::Tensor& x, Fp8Kind kind) {
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor largest = wide.abs().max().view({1});
  const at::Tensor scale =
      at::where(largest.gt(0).logical_and_(largest.isfinite()), largest.reciprocal() * reach_of(kind), 1);
  const at::Tensor cast = (wide * scale).clamp_(-reach_of(kind), reach_of(kind)).to(dtype_of(kind));
  return {.rows = cast, .columns = cast.t().contiguous(), .inverse_scale = scale.reciprocal()};
}

at::Tensor widened(const at::Tensor& x, const at::Tensor& inverse_scale) { return x.to(at::kFloat) * inverse_scale; }

void check_factors(const at::Tensor& a, const at::Tensor& b) {
  check(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(1), "a product in fp8 of {} with the transpose of {}",
        shape_text(a), shape_text(b));
}

}  // namespace

bool fits_fp8(int64_t rows, int64_t columns) { return rows > 0 && columns > 0 && rows % 16 == 0 && columns % 16 == 0; }

Fp8Matrix to_fp8(const at::Tensor& x, Fp8Kind kind) {
  check(x.dim() == 2 && fits_fp8(x.size(0), x.size(1)), "to_fp8 takes a matrix of multiples of 16; it got {}",
        shape_text(x));
  if constexpr (kCudaKernels) {
    if (on_cuda_kernel(x)) {
      const at::Tensor in = x.contiguous();
      const auto bytes = in.options().dtype(dtype_of(kind));
      const at::Tensor largest = at::zeros({1}, in.options().dtype(at::kFloat));
      Fp8Matrix result{.rows = at::empty(x.sizes(), bytes),
                       .columns = at::empty({x.size(1), x.size(0)}, bytes),
                       .inverse_scale = at::empty_like(largest)};
      largest_magnitude_cuda(in.scalar_type(), in.const_data_ptr(), in.numel(), largest.mutable_data_ptr<float>(),
                             stream_of(in));
      cast_fp8_cuda(in.scalar_type(), in.const_data_ptr(), in.size(0), in.size(1), kind,
                    largest.const_data_ptr<float>(), result.rows.mutable_data_ptr(), result.columns.mutable_data_ptr(),
                    result.inverse_scale.mutable_data_ptr<float>(), stream_of(in));
      return result;
    }
  }
  return cast_composite(x, kind);
}

at::Tensor fp8_mm(const at::Tensor& a, const at::Tensor& a_inverse_scale, const at::Tensor& b,
                  const at::Tensor& b_inverse_scale, at::ScalarType dtype, bool fast) {
  check_factors(a, b);
  if (a.is_cuda())
    return at::_scaled_mm(a, b.t(), a_inverse_scale, b_inverse_scale, /*bias=*/{}, /*scale_result=*/{}, dtype, fast);
  return widened(a, a_inverse_scale).mm(widened(b, b_inverse_scale).t()).to(dtype);
}

void fp8_mm_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& a_inverse_scale, const at::Tensor& b,
                const at::Tensor& b_inverse_scale) {
  check_factors(a, b);
  if (!a.is_cuda()) {
    out.copy_(fp8_mm(a, a_inverse_scale, b, b_inverse_scale, out.scalar_type(), /*fast=*/false));
    return;
  }
  at::Tensor into = out;
  at::_scaled_mm_out(into, a, b.t(), a_inverse_scale, b_inverse_scale, /*bias=*/{}, /*scale_result=*/{},
                     out.scalar_type(), /*use_fast_accum=*/false);
}

}  // namespace megalith::ops
