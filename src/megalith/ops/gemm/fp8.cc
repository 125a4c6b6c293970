// Casts to fp8 and products of fp8 matrices. On CUDA a cast is one or two launches: without a given scale, the first
// finds the largest magnitude and the second scales and casts, both without the host. Products go to the owner's plans
// where those take them, otherwise to libtorch's _scaled_mm; both are cuBLASLt's. Elsewhere the cast rounds through
// libtorch's fp8 types, and the product multiplies the rounded values in fp32: the effects of fp8 on a model can be
// studied on a CPU.
#include "megalith/ops/gemm/fp8.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <optional>

#include "megalith/base/error.h"
#include "megalith/ops/gemm/fp8_blocks.h"
#include "megalith/ops/gemm/fp8_internal.h"
#include "megalith/ops/gemm/gemm_internal.h"
#include "megalith/ops/kernel/tensor_internal.h"

namespace megalith::ops {

// e4m3: 3 bits of mantissa, up to 448; e5m2: 2 bits, up to 57344, for gradients, which vary more.
at::ScalarType dtype_of(Fp8Kind kind) {
  return kind == Fp8Kind::kE4m3 ? at::ScalarType::Float8_e4m3fn : at::ScalarType::Float8_e5m2;
}
double reach_of(Fp8Kind kind) { return kind == Fp8Kind::kE4m3 ? kFp8Reach<Fp8Kind::kE4m3> : kFp8Reach<Fp8Kind::kE5m2>; }

namespace {

// The cast of the CUDA kernels in ATen's operations: the same scale, the same saturation, rounding to nearest even by
// libtorch's fp8 types.
Fp8Matrix cast_composite(const at::Tensor& x, const Fp8Cast& cast) {
  const double reach = reach_of(cast.kind);
  const at::Tensor wide = x.to(at::kFloat);
  at::Tensor scale = cast.scale;
  if (!scale.defined() || cast.seen.defined()) {
    const at::Tensor largest = wide.abs().max().view({1});
    if (!scale.defined()) scale = fp8_scale(largest, cast.kind);
    if (cast.seen.defined()) cast.seen.copy_(at::fmax(cast.seen, largest));
  }
  const at::Tensor bytes = (wide * scale).clamp_(-reach, reach).to(dtype_of(cast.kind));
  const at::Tensor inverse = scale.reciprocal();
  return {.rows = cast.rows ? bytes : at::Tensor(),
          .columns = cast.columns ? bytes.t().contiguous() : at::Tensor(),
          .inverse_scale = inverse,
          .columns_inverse_scale = inverse,
          .scale = scale};
}

// Allocates the results and starts the one or two kernels; the scale never visits the host.
Fp8Matrix cast_on_cuda(const at::Tensor& x, const Fp8Cast& cast) {
  const at::Tensor in = x.contiguous();
  const auto bytes = in.options().dtype(dtype_of(cast.kind)), floats = in.options().dtype(at::kFloat);
  const int64_t r = in.size(0), c = in.size(1);
  Fp8Matrix result;
  if (cast.rows) result.rows = at::empty({r, c}, bytes);
  if (cast.columns) result.columns = at::empty({c, r}, bytes);
  const at::Tensor largest = cast.scale.defined() ? at::Tensor() : at::zeros({1}, floats);
  result.scale = cast.scale.defined() ? cast.scale : at::empty({1}, floats);
  result.inverse_scale = result.columns_inverse_scale = at::empty({1}, floats);
  if constexpr (kCudaKernels) {
    if (largest.defined())
      largest_magnitude_cuda(in.scalar_type(), in.const_data_ptr(), in.numel(), largest.mutable_data_ptr<float>(),
                             stream_of(in));
    const auto writable = [](const at::Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; };
    cast_fp8_cuda({.dtype = in.scalar_type(),
                   .x = in.const_data_ptr(),
                   .r = r,
                   .c = c,
                   .kind = cast.kind,
                   .largest = largest.defined() ? largest.const_data_ptr<float>() : nullptr,
                   .scale = result.scale.mutable_data_ptr<float>(),
                   .inverse_scale = result.inverse_scale.mutable_data_ptr<float>(),
                   .seen = static_cast<float*>(writable(cast.seen)),
                   .rows = writable(result.rows),
                   .columns = writable(result.columns)},
                  stream_of(in));
  }
  return result;
}

// Both factors are given as rows along the summed dimension, a [m, k] and b [n, k], as fp8 products want them.
void check_factors(const at::Tensor& a, const at::Tensor& b) {
  check(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(1),
        "fp8_mm got {} and {}; both must be matrices with the same number of columns", shape_text(a), shape_text(b));
}

// While it lives, products of libtorch leave multiprocessors free as those of `plans` do. The switch is one for the
// process, which on CUDA is one rank: its threads multiply one at a time.
class RoomBesideProducts {
 public:
  explicit RoomBesideProducts(const GemmPlans* plans) : before_(at::globalContext()._SMCarveout_EXPERIMENTAL()) {
    if (plans != nullptr && plans->spared() > 0) at::globalContext()._setSMCarveout_EXPERIMENTAL(plans->spared());
  }
  ~RoomBesideProducts() { at::globalContext()._setSMCarveout_EXPERIMENTAL(before_); }
  RoomBesideProducts(const RoomBesideProducts&) = delete;
  RoomBesideProducts& operator=(const RoomBesideProducts&) = delete;

 private:
  const std::optional<int32_t> before_;
};

// Returns the scales of b as _scaled_mm takes them, which sees b transposed.
at::Tensor turned(const at::Tensor& inverse_scale) {
  return inverse_scale.dim() == 2 ? inverse_scale.t() : inverse_scale;
}

// Whether plans may take the product: large, and with one scale for each factor.
bool may_be_planned(const at::Tensor& a, const at::Tensor& a_inverse_scale, const at::Tensor& b,
                    const GemmKernels& kernels) {
  return kernels.plans != nullptr && a_inverse_scale.numel() == 1 && a.size(0) * a.size(1) * b.size(0) >= kLeastTried;
}

}  // namespace

bool fits_fp8(int64_t rows, int64_t columns) { return rows > 0 && columns > 0 && rows % 16 == 0 && columns % 16 == 0; }

int64_t fp8_width_multiple(Fp8Scaling scaling) { return scaling == Fp8Scaling::kBlocks ? 4 * kFp8Block : 16; }
int64_t fp8_token_multiple(Fp8Scaling scaling) { return scaling == Fp8Scaling::kBlocks ? kFp8Block : 16; }

Fp8Matrix to_fp8(const at::Tensor& x, const Fp8Cast& cast) {
  check(x.dim() == 2 && fits_fp8(x.size(0), x.size(1)),
        "to_fp8 takes a matrix whose sizes are multiples of 16; it got {}", shape_text(x));
  const at::NoGradGuard no_grad;
  return on_cuda_kernel(x) ? cast_on_cuda(x, cast) : cast_composite(x, cast);
}

// A division, as in the kernel: the product with a reciprocal may differ in the last bit. masked_fill_, because
// at::where copies its number to the device and waits for it.
at::Tensor fp8_scale(const at::Tensor& largest, Fp8Kind kind) {
  const at::Tensor fine = largest.gt(0).logical_and_(largest.isfinite());
  return at::full_like(largest, reach_of(kind)).div_(largest).masked_fill_(fine.logical_not_(), 1);
}

// The scales are one in all, or one per 1 x 128 or per 128 x 128 numbers.
at::Tensor from_fp8(const at::Tensor& rows, const at::Tensor& inverse_scale) {
  if (inverse_scale.numel() == 1) return rows.to(at::kFloat) * inverse_scale;
  const at::Tensor wide = inverse_scale.repeat_interleave(kFp8Block, 1);
  return rows.to(at::kFloat) * (wide.size(0) == rows.size(0) ? wide : wide.repeat_interleave(kFp8Block, 0));
}

at::Tensor fp8_mm(const at::Tensor& a, const at::Tensor& a_inverse_scale, const at::Tensor& b,
                  const at::Tensor& b_inverse_scale, at::ScalarType dtype, bool fast, const GemmKernels& kernels) {
  check_factors(a, b);
  if (!a.is_cuda()) return from_fp8(a, a_inverse_scale).mm(from_fp8(b, b_inverse_scale).t()).to(dtype);
  if (may_be_planned(a, a_inverse_scale, b, kernels)) {
    const at::Tensor out = at::empty({a.size(0), b.size(0)}, a.options().dtype(dtype));
    if (kernels.plans->run_fp8(out, a, a_inverse_scale, b.t(), b_inverse_scale, 0, fast, kernels.choice)) return out;
  }
  const RoomBesideProducts room(kernels.plans);
  return at::_scaled_mm(a, b.t(), a_inverse_scale, turned(b_inverse_scale), /*bias=*/{}, /*scale_result=*/{}, dtype,
                        fast && a_inverse_scale.numel() == 1);
}

void add_fp8_mm(const at::Tensor& into, const at::Tensor& a, const at::Tensor& a_inverse_scale, const at::Tensor& b,
                const at::Tensor& b_inverse_scale, double beta, const GemmKernels& kernels) {
  check_factors(a, b);
  if (may_be_planned(a, a_inverse_scale, b, kernels) &&
      kernels.plans->run_fp8(into, a, a_inverse_scale, b.t(), b_inverse_scale, beta, /*fast=*/false, kernels.choice))
    return;
  if (beta == 0 && a.is_cuda()) {
    const RoomBesideProducts room(kernels.plans);
    at::Tensor out = into;
    at::_scaled_mm_out(out, a, b.t(), a_inverse_scale, turned(b_inverse_scale), /*bias=*/{}, /*scale_result=*/{},
                       into.scalar_type(), /*use_fast_accum=*/false);
    return;
  }
  const at::Tensor product =
      fp8_mm(a, a_inverse_scale, b, b_inverse_scale, into.scalar_type(), /*fast=*/false, kernels);
  if (beta == 0)
    into.copy_(product);
  else if (beta == 1)
    into.add_(product);
  else
    into.mul_(beta).add_(product);
}

}  // namespace megalith::ops
