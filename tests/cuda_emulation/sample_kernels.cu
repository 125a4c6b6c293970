#include "tests/cuda_emulation/sample_kernels.h"

#include "megalith/ops/kernel/cuda_math.cuh"

namespace megalith::ops {

namespace {

constexpr unsigned kAll = 0xffffffffU;

__device__ inline void exchange_with_neighbour(float* shared, bool with_barrier, float* out) {
  const int i = static_cast<int>(threadIdx.x);
  shared[i] = static_cast<float>(i);
  if (with_barrier) __syncthreads();
  out[i] = shared[(i + 1) % kSampleThreads];
}
__global__ void neighbours_kernel(bool with_barrier, float* out) {
  __shared__ float shared[kSampleThreads];
  exchange_with_neighbour(shared, with_barrier, out);
}
__global__ void dynamic_neighbours_kernel(bool with_barrier, float* out) {
  exchange_with_neighbour(dynamic_shared<float>(), with_barrier, out);
}

__global__ void unwritten_kernel(float* out) {
  __shared__ float shared[kSampleThreads];
  out[threadIdx.x] = shared[threadIdx.x];
  if (threadIdx.x > kSampleThreads) shared[0] = 0;
}

__global__ void shuffle_kernel(int missing, int* out) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < missing) return;
  out[threadIdx.x] = __shfl_sync(kAll, lane, (lane + 2) % 32);
}

__global__ void divergent_kernel(int other, int* out) {
  if (static_cast<int>(threadIdx.x) < other)
    __syncthreads();
  else
    out[threadIdx.x] = __shfl_xor_sync(kAll, 1, 16);
}

__global__ void early_return_kernel(int* out) {
  __shared__ int meeting;
  const int i = static_cast<int>(threadIdx.x);
  out[i] = 0;
  if (i % 2 == 0) return;
  if (i == 1) meeting = 1;
  __syncthreads();
  out[i] = meeting;
}

__global__ void indices_kernel(int* out) {
  if (threadIdx.x != blockDim.x - 1) return;
  int* at = out + 3 * blockIdx.x;
  at[0] = static_cast<int>(gridDim.x);
  at[1] = static_cast<int>(blockIdx.x);
  at[2] = static_cast<int>(threadIdx.x);
}

struct FillArguments {
  int64_t n;
  float* to;
};
__global__ void fill_kernel(float value, FillArguments arguments) {
  if (threadIdx.x < arguments.n) arguments.to[threadIdx.x] = value;
}

__global__ void empty_kernel() {}

}  // namespace

void neighbours_sample(bool with_barrier, float* out, void* stream) {
  launch("neighbours", neighbours_kernel, {1, kSampleThreads, stream}, with_barrier, out);
}
void dynamic_neighbours_sample(bool with_barrier, float* out, void* stream) {
  launch("dynamic_neighbours", dynamic_neighbours_kernel, {1, kSampleThreads, stream, kSampleThreads * sizeof(float)},
         with_barrier, out);
}
void unwritten_sample(float* out, void* stream) {
  launch("unwritten", unwritten_kernel, {1, kSampleThreads, stream}, out);
}
void shuffle_sample(int missing, int* out, void* stream) {
  launch("shuffle", shuffle_kernel, {1, kSampleThreads, stream}, missing, out);
}
void divergent_sample(int other, int* out, void* stream) {
  launch("divergent", divergent_kernel, {1, kSampleThreads, stream}, other, out);
}
void early_return_sample(int* out, void* stream) {
  launch("early_return", early_return_kernel, {1, kSampleThreads, stream}, out);
}
void indices_sample(int blocks, int* out, void* stream) {
  launch("indices", indices_kernel, {static_cast<unsigned>(blocks), kSampleThreads, stream}, out);
}
void fill_sample(float value, float* out, void* stream) {
  launch("fill", fill_kernel, {1, kSampleThreads, stream}, value, FillArguments{kSampleThreads, out});
}
void greedy_sample(void* stream) { launch("greedy", empty_kernel, {1, 32, stream, 64 << 10}); }

}  // namespace megalith::ops
