// Stored values on CUDA. A thread has 4 elements, 16 bytes of fp32; 16 neighbouring threads have the 64 elements that
// share a scale:
//
//   lane       0        1      ...     15       16   ...
//   element    0-3      4-7            60-63    64-67
//              |------ one scale -----------|   |--- the next
//
//   read    to = values x scale                                          reads 1 or 2 bytes per element, writes 4
//   write   amax over the 16 threads by shuffles, scale, values = from / scale      reads 4, writes 1 or 2
//
// Every step reads and writes pieces of the state that fit into the L2 cache (optim/stored_update.h), so the fp32 side
// costs no traffic to device memory.
#include <cuda_fp8.h>

#include "megalith/ops/kernel/cuda_math.cuh"
#include "megalith/ops/update/stored_values.h"
#include "megalith/ops/update/stored_values_internal.h"

namespace megalith::ops {

namespace {

constexpr int kStoredThreads = 256;
constexpr int kEach = 4;  // elements per thread
constexpr int kLanesPerScale = static_cast<int>(kScaleBlock) / kEach;

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

__device__ inline void read_four(const __half* from, float (&to)[kEach]) { load<kEach>(from, to); }
__device__ inline void read_four(const __nv_fp8_storage_t* from, float (&to)[kEach]) {
  const auto pack = *reinterpret_cast<const Pack<__nv_fp8_storage_t, kEach>*>(from);
#pragma unroll
  for (int i = 0; i < kEach; ++i) to[i] = to_float(__half(__nv_cvt_fp8_to_halfraw(pack.item[i], __NV_E4M3)));
}
__device__ inline void write_four(const float (&from)[kEach], __half* to) { store<kEach>(from, to); }
__device__ inline void write_four(const float (&from)[kEach], __nv_fp8_storage_t* to) {
  Pack<__nv_fp8_storage_t, kEach> pack;
#pragma unroll
  for (int i = 0; i < kEach; ++i) pack.item[i] = __nv_cvt_float_to_fp8(from[i], __NV_SATFINITE, __NV_E4M3);
  *reinterpret_cast<Pack<__nv_fp8_storage_t, kEach>*>(to) = pack;
}

template <typename T>
__global__ void read_scaled_kernel(const T* values, const float* scales, int64_t vectors, float* to) {
  const int64_t i = int64_t{blockIdx.x} * kStoredThreads + threadIdx.x;
  if (i >= vectors) return;
  float x[kEach];
  read_four(values + i * kEach, x);
  const float scale = scales[i / kLanesPerScale];
#pragma unroll
  for (int j = 0; j < kEach; ++j) x[j] *= scale;
  store<kEach>(x, to + i * kEach);
}

// All threads of a warp take part in the shuffles, those beyond the end with zeros.
template <typename T>
__global__ void write_scaled_kernel(const float* from, int64_t vectors, T* values, float* scales) {
  const int64_t i = int64_t{blockIdx.x} * kStoredThreads + threadIdx.x;
  float x[kEach] = {};
  if (i < vectors) load<kEach>(from + i * kEach, x);
  float amax = 0;
#pragma unroll
  for (int j = 0; j < kEach; ++j) amax = fmaxf(amax, fabsf(x[j]));
#pragma unroll
  for (int lane = kLanesPerScale / 2; lane > 0; lane /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffU, amax, lane));
  if (i >= vectors) return;
  const float scale = scale_of(amax, static_cast<const T*>(nullptr));
  if (i % kLanesPerScale == 0) scales[i / kLanesPerScale] = scale;
  const float inverse = __fdiv_rn(1.0F, scale);
#pragma unroll
  for (int j = 0; j < kEach; ++j) x[j] *= inverse;
  write_four(x, values + i * kEach);
}

__global__ void join_halves_kernel(const uint16_t* high, const int16_t* low, int64_t vectors, float* to) {
  const int64_t i = int64_t{blockIdx.x} * kStoredThreads + threadIdx.x;
  if (i >= vectors) return;
  const auto upper = *reinterpret_cast<const Pack<uint16_t, kEach>*>(high + i * kEach);
  const auto lower = *reinterpret_cast<const Pack<int16_t, kEach>*>(low + i * kEach);
  float x[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j)
    x[j] = __uint_as_float((unsigned{upper.item[j]} - (lower.item[j] < 0 ? 1U : 0U)) << 16 |
                           static_cast<uint16_t>(lower.item[j]));
  store<kEach>(x, to + i * kEach);
}

__global__ void split_halves_kernel(const float* from, int64_t vectors, uint16_t* high, int16_t* low) {
  const int64_t i = int64_t{blockIdx.x} * kStoredThreads + threadIdx.x;
  if (i >= vectors) return;
  float x[kEach];
  load<kEach>(from + i * kEach, x);
  Pack<uint16_t, kEach> upper;
  Pack<int16_t, kEach> lower;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const unsigned bits = __float_as_uint(x[j]);
    lower.item[j] = static_cast<int16_t>(bits & 0xffffU);
    upper.item[j] = static_cast<uint16_t>((bits >> 16) + ((bits >> 15) & 1U));
  }
  *reinterpret_cast<Pack<uint16_t, kEach>*>(high + i * kEach) = upper;
  *reinterpret_cast<Pack<int16_t, kEach>*>(low + i * kEach) = lower;
}

Launch launch_of(int64_t vectors, void* stream) {
  return {static_cast<unsigned>((vectors + kStoredThreads - 1) / kStoredThreads), kStoredThreads, stream};
}

}  // namespace

void read_scaled_cuda(c10::ScalarType format, const void* values, const float* scales, int64_t n, float* to,
                      void* stream) {
  if (n == 0) return;
  const int64_t vectors = n / kEach;
  if (format == c10::ScalarType::Half)
    launch("read_scaled", read_scaled_kernel<__half>, launch_of(vectors, stream), static_cast<const __half*>(values),
           scales, vectors, to);
  else
    launch("read_scaled", read_scaled_kernel<__nv_fp8_storage_t>, launch_of(vectors, stream),
           static_cast<const __nv_fp8_storage_t*>(values), scales, vectors, to);
}

void write_scaled_cuda(c10::ScalarType format, const float* from, int64_t n, void* values, float* scales,
                       void* stream) {
  if (n == 0) return;
  const int64_t vectors = n / kEach;
  if (format == c10::ScalarType::Half)
    launch("write_scaled", write_scaled_kernel<__half>, launch_of(vectors, stream), from, vectors,
           static_cast<__half*>(values), scales);
  else
    launch("write_scaled", write_scaled_kernel<__nv_fp8_storage_t>, launch_of(vectors, stream), from, vectors,
           static_cast<__nv_fp8_storage_t*>(values), scales);
}

void join_halves_cuda(const uint16_t* high, const int16_t* low, int64_t n, float* to, void* stream) {
  if (n > 0) launch("join_halves", join_halves_kernel, launch_of(n / kEach, stream), high, low, n / kEach, to);
}

void split_halves_cuda(const float* from, int64_t n, uint16_t* high, int16_t* low, void* stream) {
  if (n > 0) launch("split_halves", split_halves_kernel, launch_of(n / kEach, stream), from, n / kEach, high, low);
}

}  // namespace megalith::ops
