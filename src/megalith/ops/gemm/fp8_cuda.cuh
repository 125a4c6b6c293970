// Shared by the casts to fp8: fp8_cuda.cu with one scale per tensor, fp8_blocks_cuda.cu with one per block, and
// grouped_fp8_cuda.cu with one per row.
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

// Transposes the 4 x 4 bytes of four words: byte i of word j becomes byte j of word i. Eight byte permutations, which
// pick bytes 0 to 3 from the first word and 4 to 7 from the second (ij is byte j of word i, the lowest byte first):
//   a = 00 10 01 11,  b = 20 30 21 31,  c = 02 12 03 13,  d = 22 32 23 33
//   out[0] = 00 10 20 30,  out[1] = 01 11 21 31,  ...
__device__ inline void transpose_bytes(const unsigned (&in)[4], unsigned (&out)[4]) {
  const unsigned a = __byte_perm(in[0], in[1], 0x5140), b = __byte_perm(in[2], in[3], 0x5140);
  const unsigned c = __byte_perm(in[0], in[1], 0x7362), d = __byte_perm(in[2], in[3], 0x7362);
  out[0] = __byte_perm(a, b, 0x5410);
  out[1] = __byte_perm(a, b, 0x7632);
  out[2] = __byte_perm(c, d, 0x5410);
  out[3] = __byte_perm(c, d, 0x7632);
}

}  // namespace megalith::ops
