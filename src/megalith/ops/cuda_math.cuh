// What the CUDA kernels of this module share: vectors of 16 bytes, sums over a block, launching.
//
// A kernel is plain CUDA over raw pointers in a file x_cuda.cu, without ATen's headers; x_internal.h declares the
// function that launches it, with the arguments of its CPU twin and a stream (a cudaStream_t). fp32, bf16 and fp16;
// everything is computed in fp32.
#pragma once

#include <c10/core/ScalarType.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

namespace megalith::ops {

// Throws InternalError. (nvcc cannot read the format strings of base/error.h.)
[[noreturn]] void fail_kernel(const char* kernel, const char* why);

inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) fail_kernel(kernel, cudaGetErrorString(error));
}

struct Launch {
  dim3 blocks, threads;    // threads: of a block
  void* stream = nullptr;  // a cudaStream_t
  size_t shared_bytes = 0;
};
// Starts a kernel. `name` is for messages; arguments are converted to the kernel's parameters.
template <typename... Parameters, typename... Arguments>
void launch(const char* name, void (*kernel)(Parameters...), const Launch& how, const Arguments&... arguments) {
  const auto stream = static_cast<cudaStream_t>(how.stream);
#ifdef __CUDACC__
  kernel<<<how.blocks, how.threads, how.shared_bytes, stream>>>(arguments...);
#else  // a test of the kernels on the CPU: tests/cuda_emulation
  const cudaLaunchConfig_t config{how.blocks, how.threads, how.shared_bytes, stream};
  cudaLaunchKernelEx(&config, kernel, arguments...);
#endif
  check_launch(name);
}

// The block's dynamic shared memory.
extern __shared__ uint4 dynamic_shared_memory[];
template <typename T>
__device__ inline T* dynamic_shared() {
  return reinterpret_cast<T*>(dynamic_shared_memory);
}

// Multiprocessors of the current device.
inline int multiprocessors() {
  int device = 0, count = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

// Calls `run` with a value of the C++ type of `dtype`.
template <typename Run>
void for_dtype(c10::ScalarType dtype, const Run& run) {
  switch (dtype) {
    case c10::ScalarType::Float:
      return run(float{});
    case c10::ScalarType::BFloat16:
      return run(__nv_bfloat16{});
    case c10::ScalarType::Half:
      return run(__half{});
    default:
      fail_kernel("for this operation", c10::toString(dtype));
  }
}

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

template <typename T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}

// x as it is once stored as T.
template <typename T>
__device__ inline float rounded_to(float x) {
  return to_float(from_float<T>(x));
}

template <typename T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));  // elements of 16 bytes

// n elements that are read and written at once; n is 1 or kVector<T>.
template <typename T, int n>
struct alignas(sizeof(T) * n) Pack {
  T item[n];
};

template <int n, typename T>
__device__ inline void load(const T* from, float (&to)[n]) {
  const Pack<T, n> pack = *reinterpret_cast<const Pack<T, n>*>(from);
#pragma unroll
  for (int i = 0; i < n; ++i) to[i] = to_float(pack.item[i]);
}

template <int n, typename T>
__device__ inline void store(const float (&from)[n], T* to) {
  Pack<T, n> pack;
#pragma unroll
  for (int i = 0; i < n; ++i) pack.item[i] = from_float<T>(from[i]);
  *reinterpret_cast<Pack<T, n>*>(to) = pack;
}

// Element i of a parameter that is kept in fp32, or (`raw`) in the dtype T of the rows it belongs to.
template <typename T>
__device__ inline float small_element(const void* data, bool raw, int64_t i) {
  return raw ? to_float(static_cast<const T*>(data)[i]) : static_cast<const float*>(data)[i];
}

inline bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffU, x, lane);
  return x;
}

// Two sums at once; `scratch`: shared, 64 floats, not in use by other threads of the block any more. One barrier:
// callers that come again give another one.
__device__ inline float2 block_sum2(float2 x, float2* scratch) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = (static_cast<int>(blockDim.x) + 31) / 32;
  x = {warp_sum(x.x), warp_sum(x.y)};
  if (warps == 1) return x;
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  float2 total{0, 0};
  for (int w = 0; w < warps; ++w) total = {total.x + scratch[w].x, total.y + scratch[w].y};
  return total;
}

// The sum over the block, on every thread, always in the same order. `scratch`: shared, 33 floats; may be used again at
// once.
__device__ inline float block_sum(float x, float* scratch) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = (static_cast<int>(blockDim.x) + 31) / 32;
  x = warp_sum(x);
  if (warps == 1) return x;
  __syncthreads();
  if (lane == 0) scratch[warp] = x;
  __syncthreads();
  float total = 0;
  for (int w = 0; w < warps; ++w) total += scratch[w];
  return total;
}

// Where sums of columns go: the first `width` columns here.
struct SumsOut {
  float* sums = nullptr;
  int64_t width = 0;
  bool add = false;  // to what is there
};
// partials [n, first.width + second.width] -> the sums of its columns, always in the same order.
void column_sums_cuda(const float* partials, int64_t n, const SumsOut& first, const SumsOut& second, void* stream);
inline void column_sums_cuda(const float* partials, int64_t n, int64_t width, float* sums, void* stream) {
  column_sums_cuda(partials, n, {sums, width}, {}, stream);
}

// Blocks of a kernel that are on the device at once.
template <typename Kernel>
int64_t resident_blocks(Kernel kernel, int threads) {
  int each = 1;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, 0);
  return int64_t{multiprocessors()} * std::max(1, each);
}

}  // namespace megalith::ops
