// Shared by the kernels over stored state: conversions of four elements, scales, and halves of fp32 numbers. A thread
// has 4 elements, and 16 neighbouring threads those that share a scale.
#pragma once

#include <cuda_fp8.h>

#include "megalith/ops/kernel/cuda_math.cuh"
#include "megalith/ops/update/stored_values.h"
#include "megalith/ops/update/stored_values_internal.h"

namespace megalith::ops {

inline constexpr int kPerThread = 4;  // elements per thread
inline constexpr int kLanesPerScale = static_cast<int>(kScaleBlock) / kPerThread;

// The smallest power of two with amax / scale <= 2^15.
__device__ inline float scale_of(float amax, const __half* /*type*/) {
  const unsigned exponent = (__float_as_uint(amax) + 0x7fffffU) >> 23;
  const unsigned smallest = __float_as_uint(kSmallestScale) >> 23;
  return __uint_as_float((exponent < smallest + 15 ? smallest : exponent - 15) << 23);
}
// amax / 448, rounded up to 16 significant bits.
__device__ inline float scale_of(float amax, const __nv_fp8_storage_t* /*type*/) {
  const float scale = __uint_as_float((__float_as_uint(__fdiv_rn(amax, 448.0F)) + 0xffU) & ~0xffU);
  return scale < kSmallestScale ? kSmallestScale : scale;
}

__device__ inline void read_four(const __half* from, float (&to)[kPerThread]) { load<kPerThread>(from, to); }
__device__ inline void read_four(const __nv_fp8_storage_t* from, float (&to)[kPerThread]) {
  const auto pack = *reinterpret_cast<const Pack<__nv_fp8_storage_t, kPerThread>*>(from);
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) to[i] = to_float(__half(__nv_cvt_fp8_to_halfraw(pack.item[i], __NV_E4M3)));
}
__device__ inline void write_four(const float (&from)[kPerThread], __half* to) { store<kPerThread>(from, to); }
__device__ inline void write_four(const float (&from)[kPerThread], __nv_fp8_storage_t* to) {
  Pack<__nv_fp8_storage_t, kPerThread> pack;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) pack.item[i] = __nv_cvt_float_to_fp8(from[i], __NV_SATFINITE, __NV_E4M3);
  *reinterpret_cast<Pack<__nv_fp8_storage_t, kPerThread>*>(to) = pack;
}

// Returns the largest magnitude among the 16 threads that share a scale. All threads of a warp take part.
__device__ inline float amax_of_scale(const float (&x)[kPerThread]) {
  float amax = 0;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) amax = fmaxf(amax, fabsf(x[j]));
#pragma unroll
  for (int lane = kLanesPerScale / 2; lane > 0; lane /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffU, amax, lane));
  return amax;
}

// An fp32 number and its halves: the bits of a bf16, rounded up where the lower half is negative, and the lower half.
__device__ inline float join_halves(uint16_t high, int16_t low) {
  return __uint_as_float((unsigned{high} - (low < 0 ? 1U : 0U)) << 16 | static_cast<uint16_t>(low));
}
__device__ inline void split_halves(float x, uint16_t& high, int16_t& low) {
  const unsigned bits = __float_as_uint(x);
  low = static_cast<int16_t>(bits & 0xffffU);
  high = static_cast<uint16_t>((bits >> 16) + ((bits >> 15) & 1U));
}

}  // namespace megalith::ops
