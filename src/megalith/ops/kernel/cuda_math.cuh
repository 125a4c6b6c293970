// Shared by the CUDA kernels of this module: vectors of 16 bytes, sums over a warp or block, copies ahead, launches.
//
// A kernel is plain CUDA over raw pointers in a file x_cuda.cu, without ATen's headers; x_internal.h declares the
// function that launches it, with the arguments of its CPU twin and a stream (a cudaStream_t). Kernels take fp32, bf16
// and fp16 and compute in fp32. Most are limited by memory: they read and write 16 bytes per thread and instruction,
// and each array once.
#pragma once

#include <c10/core/ScalarType.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace megalith::ops {

// Throws InternalError. (nvcc cannot read the format strings of base/error.h.)
[[noreturn]] void fail_kernel(const char* kernel, const char* why);

// Throws if the last launch failed. Errors while a kernel runs show at a later call.
inline void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) fail_kernel(kernel, cudaGetErrorString(error));
}

// Launch configuration.
struct Launch {
  dim3 blocks, threads;    // threads per block
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

// The block's dynamic shared memory. One declaration serves all kernels, since CUDA wants one type per name; uint4
// gives it the alignment of vector loads.
extern __shared__ uint4 dynamic_shared_memory[];
template <typename T>
__device__ inline T* dynamic_shared() {
  return reinterpret_cast<T*>(dynamic_shared_memory);
}

// Multiprocessors of the current device: 132 on an H200.
inline int multiprocessors() {
  int device = 0, count = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

// Calls `run` with a value of the C++ type of `dtype`; throws InternalError for types without kernels, such as fp64.
// Usage: for_dtype(dtype, [&]<typename T>(T) { … });
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

// Conversions of one element to and from fp32, rounding to nearest even.
__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

// Returns x rounded to T.
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

// Returns x rounded to T.
template <typename T>
__device__ inline float rounded_to(float x) {
  return to_float(from_float<T>(x));
}

template <typename T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));  // elements in 16 bytes, the widest load

// n elements that are read and written at once; n is 1 or kVector<T>.
template <typename T, int n>
struct alignas(sizeof(T) * n) Pack {
  T item[n];
};

// n 32-bit registers with the alignment of one load: Words<4> is moved by a single 16-byte instruction.
template <int n>
struct alignas(4 * n) Words {
  uint32_t word[n];
};

// n elements in their own type, packed into 32-bit registers where they fill them: for bf16 and fp16 half as many
// registers as their floats. (Given elements of 16 bits, the compiler would use a register for each.)
template <typename T, int n>
inline constexpr bool kInWords = sizeof(T) * n % 4 == 0;
template <typename T, int n>
using Raw = std::conditional_t<kInWords<T, n>, Words<static_cast<int>((sizeof(T) * n + 3) / 4)>, Pack<T, n>>;

// Loads n elements without converting them, in one instruction; `from` is aligned to n elements. Kernels load rows that
// are used twice this way and unpack them at each use.
template <int n, typename T>
__device__ inline Raw<T, n> load_raw(const T* from) {
  return *reinterpret_cast<const Raw<T, n>*>(from);
}

// split() converts the elements of a 32-bit word to floats, join() floats to a word; `type` selects the element type.
// A bf16 is the upper half of a float: no conversion is needed.
__device__ inline void split(uint32_t word, const float* /*type*/, float* to) { to[0] = __uint_as_float(word); }
__device__ inline void split(uint32_t word, const __nv_bfloat16* /*type*/, float* to) {
  to[0] = __uint_as_float(word << 16);
  to[1] = __uint_as_float(word & 0xffff0000U);
}
__device__ inline void split(uint32_t word, const __half* /*type*/, float* to) {
  Pack<__half, 2> pack;
  memcpy(&pack, &word, sizeof(word));
  to[0] = to_float(pack.item[0]);
  to[1] = to_float(pack.item[1]);
}
__device__ inline uint32_t join(const float* from, const float* /*type*/) { return __float_as_uint(from[0]); }
__device__ inline uint32_t join(const float* from, const __nv_bfloat16* /*type*/) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(from[0], from[1]);
  uint32_t word;
  memcpy(&word, &two, sizeof(word));
  return word;
}
__device__ inline uint32_t join(const float* from, const __half* /*type*/) {
  const __half2 two = __floats2half2_rn(from[0], from[1]);
  uint32_t word;
  memcpy(&word, &two, sizeof(word));
  return word;
}

// Converts packed elements to floats; pack() converts back, rounding to nearest even.
template <typename T, int n>
__device__ inline void unpack(const Raw<T, n>& raw, float (&to)[n]) {
  constexpr int kEach = 4 / static_cast<int>(sizeof(T));
  if constexpr (kInWords<T, n>) {
#pragma unroll
    for (int i = 0; i < n / kEach; ++i) split(raw.word[i], static_cast<const T*>(nullptr), to + i * kEach);
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) to[i] = to_float(raw.item[i]);
  }
}

// Converts floats to packed elements, rounding to nearest even: the inverse of unpack().
template <typename T, int n>
__device__ inline Raw<T, n> pack(const float (&from)[n]) {
  constexpr int kEach = 4 / static_cast<int>(sizeof(T));
  Raw<T, n> raw;
  if constexpr (kInWords<T, n>) {
#pragma unroll
    for (int i = 0; i < n / kEach; ++i) raw.word[i] = join(from + i * kEach, static_cast<const T*>(nullptr));
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) raw.item[i] = from_float<T>(from[i]);
  }
  return raw;
}

// Loads n elements, 1 or kVector<T>, in one instruction; `from` is aligned to them.
template <int n, typename T>
__device__ inline void load(const T* from, float (&to)[n]) {
  unpack<T, n>(load_raw<n>(from), to);
}

// Loads n elements in pieces of 16 bytes, for n a multiple of kVector<T> and `from` aligned to 16 bytes; fewer elements
// in one piece.
template <int n, typename T>
__device__ inline void load_all(const T* from, float (&to)[n]) {
  constexpr int kEach = n < kVector<T> ? n : kVector<T>;
#pragma unroll
  for (int start = 0; start < n; start += kEach) {
    float part[kEach];
    load<kEach>(from + start, part);
#pragma unroll
    for (int i = 0; i < kEach; ++i) to[start + i] = part[i];
  }
}

// Stores n elements, 1 or kVector<T>, in one instruction; `to` is aligned to them.
template <int n, typename T>
__device__ inline void store(const float (&from)[n], T* to) {
  *reinterpret_cast<Raw<T, n>*>(to) = pack<T, n>(from);
}

// Stores n elements in pieces, like load_all.
template <int n, typename T>
__device__ inline void store_all(const float (&from)[n], T* to) {
  constexpr int kEach = n < kVector<T> ? n : kVector<T>;
#pragma unroll
  for (int start = 0; start < n; start += kEach) {
    float part[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) part[i] = from[start + i];
    store<kEach>(part, to + start);
  }
}

// Makes the compiler forget what it has computed from these bits, so that it unpacks them again at the next use instead
// of keeping n floats alive: for kernels that are limited by registers, not by arithmetic.
template <int n>
__device__ inline void forget(Words<n>& raw) {
#pragma unroll
  for (int i = 0; i < n; ++i) asm volatile("" : "+r"(raw.word[i]));
}
template <typename T, int n>
__device__ inline void forget(Pack<T, n>& /*short, and for odd sizes only*/) {}

// Returns element i of a small parameter that is stored in fp32, or (`raw`) in the dtype T of its rows.
template <typename T>
__device__ inline float small_element(const void* data, bool raw, int64_t i) {
  return raw ? to_float(static_cast<const T*>(data)[i]) : static_cast<const float*>(data)[i];
}

// Loads v elements of a small parameter from `at` on; `data` is aligned to 16 bytes if v is more than one.
template <typename T, int v>
__device__ inline void load_small(const void* data, bool raw, int at, float (&to)[v]) {
  if (raw)
    load<v>(static_cast<const T*>(data) + at, to);
  else
    load_all(static_cast<const float*>(data) + at, to);
}

// copy_async() copies 16 or 8 bytes from global to shared memory without passing through registers. A thread's copies
// since its last commit_copies() are a group; wait_copies<n>() waits for all groups of the thread except the n newest.
// Other threads see the copies only after a barrier.
#ifdef __CUDACC__
template <int bytes = 16>
__device__ inline void copy_async(void* to, const void* from) {
  static_assert(bytes == 16 || bytes == 8);
  const auto shared = static_cast<unsigned>(__cvta_generic_to_shared(to));
  if constexpr (bytes == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from) : "memory");
  else  // smaller copies pass through the first-level cache
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared), "l"(from) : "memory");
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int newest>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(newest) : "memory");
}
#else  // tests/cuda_emulation: at once
template <int bytes = 16>
void copy_async(void* to, const void* from) {
  memcpy(to, from, bytes);
}
inline void commit_copies() {}
template <int newest>
void wait_copies() {}
#endif

// Whether p is aligned to 16 bytes, as vector loads need it; nullptr is, so that absent arrays do not matter.
inline bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// Sum and maximum over the 32 lanes of a warp, on every lane. All lanes must call them.
__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x += __shfl_xor_sync(0xffffffffU, x, lane);
  return x;
}

// The maximum takes the same five exchanges (with the lane 16, 8, 4, 2 and 1 away) as the sum.
__device__ inline float warp_max(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffU, x, lane));
  return x;
}

// Returns the sum over the block on every thread, always added in the same order. `scratch` is shared memory for 33
// floats and may be reused by the next call.
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

// Destination of column sums.
struct SumsOut {
  void* sums = nullptr;  // [width]
  c10::ScalarType dtype = c10::ScalarType::Float;
  int64_t width = 0;
  bool add = false;  // adds to the present values; fp32 only
};
// Sums the columns of partials [n, first.width + second.width] in a fixed order: the second step of gradients that
// blocks sum on their own. With atomics the result would differ from run to run.
void column_sums_cuda(const float* partials, int64_t n, const SumsOut& first, const SumsOut& second, void* stream);

// Lets a kernel use `bytes` of dynamic shared memory. CUDA wants to be asked for more than 48 KiB, static arrays
// included; the threshold of 40 KiB leaves 8 KiB for those.
template <typename Kernel>
void allow_shared(Kernel kernel, size_t bytes) {
  if (bytes > 40 << 10)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

// Returns how many blocks of a kernel run on the device at once; `shared` is a block's dynamic shared memory in bytes.
// Kernels that walk over their data start as many: more would only add partial sums and a last, half-empty wave.
template <typename Kernel>
int64_t resident_blocks(Kernel kernel, int threads, size_t shared = 0) {
  int each = 1;
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, shared);
  return int64_t{multiprocessors()} * std::max(1, each);
}

}  // namespace megalith::ops
