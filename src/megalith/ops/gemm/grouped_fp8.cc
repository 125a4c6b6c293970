// Casts and products for experts in fp8. On CUDA each cast is one launch, and libtorch's grouped kernel multiplies and
// applies both scales to the sums; it reads the ends of groups on the device. Elsewhere the cast rounds through
// libtorch's fp8 types, and the rounded values are multiplied in fp32.
#include "megalith/ops/gemm/grouped_fp8.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "megalith/base/error.h"
#include "megalith/ops/gemm/fp8.h"
#include "megalith/ops/gemm/fp8_internal.h"
#include "megalith/ops/kernel/tensor_internal.h"

namespace megalith::ops {

namespace {

constexpr Fp8Kind kKind = Fp8Kind::kE4m3;
constexpr int64_t kMultiple = 16;  // rows have a multiple of it: tensor cores read 16 bytes

// The cast of the CUDA kernels in ATen's operations.
Fp8Rows cast_composite(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kFloat), scale = fp8_scale(wide.abs().amax(-1), kKind);
  const double reach = reach_of(kKind);
  return {(wide * scale.unsqueeze(-1)).clamp_(-reach, reach).to(dtype_of(kKind)), scale.reciprocal()};
}

// Allocates the results for rows of `sizes` and calls `cast` with their memory.
template <typename Cast>
Fp8Rows cast_on_cuda(const at::Tensor& in, at::IntArrayRef sizes, const Cast& cast) {
  Fp8Rows to{at::empty(sizes, in.options().dtype(dtype_of(kKind))),
             at::empty(sizes.slice(0, sizes.size() - 1), in.options().dtype(at::kFloat))};
  cast(to.values.mutable_data_ptr(), to.inverse_scale.mutable_data_ptr<float>());
  return to;
}

// Returns the values in fp32, for the emulation.
at::Tensor values_of(const Fp8Rows& rows) { return rows.values.to(at::kFloat) * rows.inverse_scale.unsqueeze(-1); }

}  // namespace

Fp8Rows to_fp8_rows(const at::Tensor& x) {
  check((x.dim() == 2 || x.dim() == 3) && x.size(-1) % kMultiple == 0,
        "to_fp8_rows takes rows whose length is a multiple of {}; it got {}", kMultiple, shape_text(x));
  const at::NoGradGuard no_grad;
  const at::Tensor in = x.detach().contiguous();
  if constexpr (kCudaKernels)
    if (on_cuda_kernel(in))
      return cast_on_cuda(in, in.sizes(), [&in](void* values, float* inverse) {
        const int64_t columns = in.size(-1);
        cast_fp8_rows_cuda(
            {in.scalar_type(), in.const_data_ptr(), 1, in.numel() / std::max<int64_t>(columns, 1), columns}, values,
            inverse, stream_of(in));
      });
  return cast_composite(in);
}

Fp8Rows to_fp8_columns(const at::Tensor& w) {
  check(w.dim() == 3 && fits_fp8(w.size(1), w.size(2)),
        "to_fp8_columns takes matrices [g, o, i] whose sizes are multiples of {}; it got {}", kMultiple, shape_text(w));
  const at::NoGradGuard no_grad;
  const at::Tensor in = w.detach();
  if constexpr (kCudaKernels)
    if (on_cuda_kernel(in) && in.is_contiguous())
      return cast_on_cuda(in, {in.size(0), in.size(2), in.size(1)}, [&in](void* values, float* inverse) {
        cast_fp8_columns_cuda({in.scalar_type(), in.const_data_ptr(), in.size(0), in.size(1), in.size(2)}, values,
                              inverse, stream_of(in));
      });
  return to_fp8_rows(in.transpose(1, 2));
}

bool has_grouped_fp8(at::Device device) {
  if (!device.is_cuda()) return true;
  if constexpr (kCudaKernels) return compute_capability_major_cuda(device.has_index() ? device.index() : -1) == 9;
  return false;
}

at::Tensor grouped_fp8_mm(const Fp8Rows& x, const Fp8Rows& w, const GroupCounts& counts, at::ScalarType dtype,
                          bool fast) {
  const at::Tensor &a = x.values, &b = w.values;
  check(a.dim() == 2 && b.dim() == 3 && a.size(1) == b.size(2) && b.size(0) == counts.groups() &&
            fits_fp8(b.size(1), b.size(2)),
        "a grouped product in fp8 got rows {} and matrices {} for {} groups; it takes [r, c] and one matrix [o, c] per"
        " group, with multiples of {}",
        shape_text(a), shape_text(b), counts.groups(), kMultiple);
  counts.check_rows(a.size(0));
  if (a.size(0) == 0) return at::empty({0, b.size(1)}, a.options().dtype(dtype));
  if (!a.is_cuda()) return grouped_mm_transposed(values_of(x), values_of(w), counts).to(dtype);
  return at::_scaled_grouped_mm(a, b.transpose(1, 2), x.inverse_scale, w.inverse_scale, counts.ends(a.device()),
                                /*bias=*/{}, /*scale_result=*/{}, at::kBFloat16, fast)
      .to(dtype);
}

}  // namespace megalith::ops
