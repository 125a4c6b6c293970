// Shared by the two casts to fp8: fp8_cuda.cu with one scale per tensor, fp8_blocks_cuda.cu with one per block.
#pragma once

#include <cuda_fp8.h>

#include "megalith/ops/gemm/fp8_internal.h"
#include "megalith/ops/kernel/cuda_math.cuh"

namespace megalith::ops {

// Casts four numbers to the bytes of a word; numbers beyond the largest one saturate. Two
// conversion instructions; `a` is the lowest byte, so that a store writes a, b, c, d in the order of addresses.
template <Fp8Kind kind>
__device__ inline unsigned cast_four(float a, float b, float c, float d) {
  constexpr auto to = kind == Fp8Kind::kE4m3 ? __NV_E4M3 : __NV_E5M2;
  return __nv_cvt_float2_to_fp8x2(float2{a, b}, __NV_SATFINITE, to) |
         static_cast<unsigned>(__nv_cvt_float2_to_fp8x2(float2{c, d}, __NV_SATFINITE, to)) << 16;
}

}  // namespace megalith::ops
