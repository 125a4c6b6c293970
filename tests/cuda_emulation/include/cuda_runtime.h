// In CUDA's place where kernels are compiled for the CPU (emulation.h): the words of the language, the runtime
// functions and the device functions that our kernels use, and no more.
#pragma once

#include <ATen/core/Tensor.h>  // before __CUDA_ARCH__, which libtorch's headers look at
#include <math.h>
#include <stdio.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "tests/cuda_emulation/device_math.h"
#include "tests/cuda_emulation/devices.h"
#include "tests/cuda_emulation/emulation.h"

#define __CUDA_ARCH__ 900
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __launch_bounds__(...)
// shared_memory.h says why. GCC looks for a function that initialises them unless it is told that there is none; Clang
// says that arrays of structures are not initialised.
#if defined(__clang__)
#define __shared__ thread_local
#else
#define __shared__ constinit thread_local
#endif

using std::max;
using std::min;

struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned in_x = 1, unsigned in_y = 1, unsigned in_z = 1) : x(in_x), y(in_y), z(in_z) {}
};

// Synchronisation. ----------------------------------------------------------------------------------------------------

inline void __syncthreads() { megalith::cuda_emulation::wait_for_block(); }
inline void __syncwarp(unsigned mask = 0xffffffffU) {
  megalith::cuda_emulation::exchange(megalith::cuda_emulation::WarpCall::kSync, mask, 0, 0);
}
[[noreturn]] inline void __trap() { megalith::cuda_emulation::stop("__trap"); }

inline unsigned emulated_lane() { return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % 32; }
template <typename T>
T __shfl_sync(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = megalith::cuda_emulation::exchange(megalith::cuda_emulation::WarpCall::kShuffle, mask, bits,
                                            static_cast<unsigned>(source) % 32);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int other) {
  return __shfl_sync(mask, value, static_cast<int>(emulated_lane() ^ static_cast<unsigned>(other)));
}

template <typename T>
T __reduce_max_sync(unsigned mask, T value) {
  for (int lane = 16; lane > 0; lane /= 2) value = std::max(value, __shfl_xor_sync(mask, value, lane));
  return value;
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned value) {
  for (int lane = 16; lane > 0; lane /= 2) value = std::min(value, __shfl_xor_sync(mask, value, lane));
  return value;
}

inline unsigned __ballot_sync(unsigned mask, bool vote) {
  unsigned votes = vote ? 1U << emulated_lane() : 0;
  for (int lane = 16; lane > 0; lane /= 2) votes |= __shfl_xor_sync(mask, votes, lane);
  return votes;
}

// Memory: threads take turns, so that nothing comes between. ----------------------------------------------------------

template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  return std::exchange(*at, *at + value);
}
inline float4 atomicAdd(float4* at, float4 v) {
  return std::exchange(*at, float4{at->x + v.x, at->y + v.y, at->z + v.z, at->w + v.w});
}
inline int atomicMax(int* at, int value) { return std::exchange(*at, std::max(*at, value)); }
template <typename T>
T __ldcg(const T* at) {
  return *at;
}

// Bits. ---------------------------------------------------------------------------------------------------------------

inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline int __float2int_rz(float x) {
  return std::isnan(x) ? 0 : static_cast<int>(std::clamp(static_cast<double>(x), -0x1p31, 0x1p31 - 1));
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
// Four of the eight bytes of low and high, by the four digits of `which`.
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned which) {
  const uint64_t bytes = uint64_t{high} << 32 | low;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; ++i)
    result |= static_cast<unsigned>(bytes >> ((which >> 4 * i & 7U) * 8) & 0xffU) << 8 * i;
  return result;
}

// The runtime: devices with few multiprocessors, so that blocks have several rows each. -------------------------------

using cudaStream_t = megalith::cuda_emulation::Stream*;

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidDevice = 101, cudaErrorLaunchFailure = 719 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16, cudaDevAttrComputeCapabilityMajor = 75 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaLaunchAttributeID { cudaLaunchAttributeClusterDimension = 4 };
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  const cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

inline cudaError_t cudaGetDevice(int* device) {
  *device = megalith::cuda_emulation::current_device();
  return cudaSuccess;
}
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (device < 0 || device >= megalith::cuda_emulation::kDevices) return cudaErrorInvalidDevice;
  *value = attribute == cudaDevAttrMultiProcessorCount ? 4 : 9;
  return cudaSuccess;
}
template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, Kernel, int /*threads*/, size_t /*shared*/) {
  *blocks = 2;
  return cudaSuccess;
}

// The error of the last launch. cudaGetLastError forgets that there was an error.
cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t error);

namespace megalith::cuda_emulation {

// On the current device.
void allow_shared_bytes(const void* kernel, size_t bytes);
cudaError_t start(const void* name_of_kernel, const cudaLaunchConfig_t& config, const Arguments& arguments,
                  const std::function<void()>& kernel);

}  // namespace megalith::cuda_emulation

template <typename... Parameters>
cudaError_t cudaFuncSetAttribute(void (*kernel)(Parameters...), cudaFuncAttribute /*attribute*/, int value) {
  megalith::cuda_emulation::allow_shared_bytes(reinterpret_cast<const void*>(kernel), static_cast<size_t>(value));
  return cudaSuccess;
}
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  const std::tuple<Parameters...> values(std::forward<Arguments>(arguments)...);
  const auto bytes = [](const auto&... value) {
    return megalith::cuda_emulation::Arguments{std::as_bytes(std::span(&value, 1))...};
  };
  return megalith::cuda_emulation::start(reinterpret_cast<const void*>(kernel), *config, std::apply(bytes, values),
                                         [&] { std::apply(kernel, values); });
}
