// Casts to fp8 in blocks: one kernel on CUDA, ATen's operations elsewhere, with the same roundings and scales. Strips
// are cut along the summed dimension, so that the two orders of a matrix have different blocks and different values;
// squares are the same blocks in both orders.
#include "megalith/ops/gemm/fp8_blocks.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "megalith/base/error.h"
#include "megalith/ops/gemm/fp8_internal.h"
#include "megalith/ops/kernel/tensor_internal.h"

namespace megalith::ops {

namespace {

// Bytes [r, c] in fp8 and the inverse scales of their blocks.
struct Cast {
  at::Tensor bytes, inverse_scale;
};

// Casts wide [r, c] in strips of 128 columns. The scales are stored column by column, as cuBLASLt reads them.
Cast in_strips(const at::Tensor& wide, Fp8Kind kind) {
  const double reach = reach_of(kind);
  const at::Tensor parts = wide.view({wide.size(0), -1, kFp8Block});
  const at::Tensor scale = fp8_block_scale(parts.abs().amax(-1), kind);  // [r, c/128]
  const at::Tensor bytes = (parts * scale.unsqueeze(2)).clamp_(-reach, reach).view(wide.sizes()).to(dtype_of(kind));
  return {bytes, scale.reciprocal().t().contiguous().t()};
}

// The kernel's result in ATen's operations, for any device.
Fp8Matrix cast_composite(const at::Tensor& x, Fp8Kind kind, Fp8Blocks blocks, bool rows, bool columns) {
  const at::Tensor wide = x.to(at::kFloat).contiguous();
  Fp8Matrix result;
  if (blocks == Fp8Blocks::kStrips) {
    if (rows) {
      const Cast cast = in_strips(wide, kind);
      result.rows = cast.bytes;
      result.inverse_scale = cast.inverse_scale;
    }
    if (columns) {
      const Cast turned = in_strips(wide.t().contiguous(), kind);
      result.columns = turned.bytes;
      result.columns_inverse_scale = turned.inverse_scale;
    }
    return result;
  }
  const double reach = reach_of(kind);
  const at::Tensor parts = wide.view({x.size(0) / kFp8Block, kFp8Block, x.size(1) / kFp8Block, kFp8Block});
  const at::Tensor scale = fp8_block_scale(parts.abs().amax({1, 3}), kind);  // [r/128, c/128]
  const at::Tensor bytes =
      (parts * scale.unsqueeze(1).unsqueeze(3)).clamp_(-reach, reach).view(x.sizes()).to(dtype_of(kind));
  result.inverse_scale = scale.reciprocal();
  result.columns_inverse_scale = result.inverse_scale.t().contiguous();
  if (rows) result.rows = bytes;
  if (columns) result.columns = bytes.t().contiguous();
  return result;
}

}  // namespace

// frexp gives a mantissa in [0.5, 1), so that 2^(exponent - 1) is the power of two at or below a number.
at::Tensor fp8_block_scale(const at::Tensor& largest, Fp8Kind kind) {
  const at::Tensor wanted = largest.reciprocal() * reach_of(kind);
  const at::Tensor exponent = std::get<1>(at::frexp(wanted)) - 1;
  const at::Tensor fine = largest.gt(0).logical_and_(largest.isfinite()).logical_and_(wanted.isfinite());
  return at::ldexp(at::ones_like(wanted), exponent).masked_fill_(fine.logical_not_(), 1);  // waits for nothing
}

Fp8Matrix to_fp8_blocks(const at::Tensor& x, Fp8Kind kind, Fp8Blocks blocks, bool rows, bool columns) {
  check(x.dim() == 2 && x.numel() > 0 && x.size(0) % kFp8Block == 0 && x.size(1) % kFp8Block == 0,
        "to_fp8_blocks takes a matrix whose sizes are multiples of 128; it got {}", shape_text(x));
  const at::NoGradGuard no_grad;
  if (!on_cuda_kernel(x)) return cast_composite(x, kind, blocks, rows, columns);
  const at::Tensor in = x.contiguous();
  const int64_t r = in.size(0), c = in.size(1);
  const bool strips = blocks == Fp8Blocks::kStrips;
  const auto bytes = in.options().dtype(dtype_of(kind)), floats = in.options().dtype(at::kFloat);
  Fp8Matrix result;
  Fp8BlockArrays to{
      .dtype = in.scalar_type(), .x = in.const_data_ptr(), .r = r, .c = c, .kind = kind, .strips = strips};
  if (rows) {
    result.rows = at::empty({r, c}, bytes);
    result.inverse_scale =
        strips ? at::empty({c / kFp8Block, r}, floats).t() : at::empty({r / kFp8Block, c / kFp8Block}, floats);
    to.rows = result.rows.mutable_data_ptr();
    to.inverse_scale = result.inverse_scale.mutable_data_ptr<float>();
  }
  if (columns) {
    result.columns = at::empty({c, r}, bytes);
    result.columns_inverse_scale =
        strips ? at::empty({r / kFp8Block, c}, floats).t() : at::empty({c / kFp8Block, r / kFp8Block}, floats);
    to.columns = result.columns.mutable_data_ptr();
    to.columns_inverse_scale = result.columns_inverse_scale.mutable_data_ptr<float>();
  }
  if constexpr (kCudaKernels) cast_fp8_blocks_cuda(to, stream_of(in));
  return result;
}

}  // namespace megalith::ops
