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
// Rules without a kernel of their own for stored state read and write pieces that fit into the L2 cache
// (optim/stored_update.h), so the fp32 side costs no traffic to device memory.
#include "megalith/ops/update/stored_values_cuda.cuh"

namespace megalith::ops {

namespace {

constexpr int kStoredThreads = 256;
template <typename T>
__global__ void read_scaled_kernel(const T* values, const float* scales, int64_t vectors, float* to) {
  const int64_t i = int64_t{blockIdx.x} * kStoredThreads + threadIdx.x;
  if (i >= vectors) return;
  float x[kPerThread];
  read_four(values + i * kPerThread, x);
  const float scale = scales[i / kLanesPerScale];
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) x[j] *= scale;
  store<kPerThread>(x, to + i * kPerThread);
}

// All threads of a warp take part in the shuffles, those beyond the end with zeros.
template <typename T>
__global__ void write_scaled_kernel(const float* from, int64_t vectors, T* values, float* scales) {
  const int64_t i = int64_t{blockIdx.x} * kStoredThreads + threadIdx.x;
  float x[kPerThread] = {};
  if (i < vectors) load<kPerThread>(from + i * kPerThread, x);
  const float amax = amax_of_scale(x);
  if (i >= vectors) return;
  const float scale = scale_of(amax, static_cast<const T*>(nullptr));
  if (i % kLanesPerScale == 0) scales[i / kLanesPerScale] = scale;
  const float inverse = __fdiv_rn(1.0F, scale);
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) x[j] *= inverse;
  write_four(x, values + i * kPerThread);
}

__global__ void join_halves_kernel(const uint16_t* high, const int16_t* low, int64_t vectors, float* to) {
  const int64_t i = int64_t{blockIdx.x} * kStoredThreads + threadIdx.x;
  if (i >= vectors) return;
  const auto upper = *reinterpret_cast<const Pack<uint16_t, kPerThread>*>(high + i * kPerThread);
  const auto lower = *reinterpret_cast<const Pack<int16_t, kPerThread>*>(low + i * kPerThread);
  float x[kPerThread];
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) x[j] = join_halves(upper.item[j], lower.item[j]);
  store<kPerThread>(x, to + i * kPerThread);
}

__global__ void split_halves_kernel(const float* from, int64_t vectors, uint16_t* high, int16_t* low) {
  const int64_t i = int64_t{blockIdx.x} * kStoredThreads + threadIdx.x;
  if (i >= vectors) return;
  float x[kPerThread];
  load<kPerThread>(from + i * kPerThread, x);
  Pack<uint16_t, kPerThread> upper;
  Pack<int16_t, kPerThread> lower;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) split_halves(x[j], upper.item[j], lower.item[j]);
  *reinterpret_cast<Pack<uint16_t, kPerThread>*>(high + i * kPerThread) = upper;
  *reinterpret_cast<Pack<int16_t, kPerThread>*>(low + i * kPerThread) = lower;
}

Launch launch_of(int64_t vectors, void* stream) {
  return {static_cast<unsigned>((vectors + kStoredThreads - 1) / kStoredThreads), kStoredThreads, stream};
}

}  // namespace

void read_scaled_cuda(c10::ScalarType format, const void* values, const float* scales, int64_t n, float* to,
                      void* stream) {
  if (n == 0) return;
  const int64_t vectors = n / kPerThread;
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
  const int64_t vectors = n / kPerThread;
  if (format == c10::ScalarType::Half)
    launch("write_scaled", write_scaled_kernel<__half>, launch_of(vectors, stream), from, vectors,
           static_cast<__half*>(values), scales);
  else
    launch("write_scaled", write_scaled_kernel<__nv_fp8_storage_t>, launch_of(vectors, stream), from, vectors,
           static_cast<__nv_fp8_storage_t*>(values), scales);
}

void join_halves_cuda(const uint16_t* high, const int16_t* low, int64_t n, float* to, void* stream) {
  if (n > 0)
    launch("join_halves", join_halves_kernel, launch_of(n / kPerThread, stream), high, low, n / kPerThread, to);
}

void split_halves_cuda(const float* from, int64_t n, uint16_t* high, int16_t* low, void* stream) {
  if (n > 0)
    launch("split_halves", split_halves_kernel, launch_of(n / kPerThread, stream), from, n / kPerThread, high, low);
}

}  // namespace megalith::ops
