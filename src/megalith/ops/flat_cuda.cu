#include <cmath>

#include "megalith/ops/cuda_math.cuh"
#include "megalith/ops/flat_internal.h"

namespace megalith::ops {

namespace {

constexpr int kThreads = 256;
constexpr int kMostBlocks = 1024;

__device__ double block_sum(double x) {
  __shared__ double shared[kThreads];
  shared[threadIdx.x] = x;
  for (int half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < half) shared[threadIdx.x] += shared[threadIdx.x + half];
  }
  __syncthreads();
  return shared[0];
}

// partials [gridDim.x]; squares of a vector are added in fp32, the rest in fp64.
template <typename T, int v>
__global__ void squares_kernel(const T* flat, int64_t vectors, double* partials) {
  double sum = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors; i += int64_t{gridDim.x} * kThreads) {
    float x[v];
    load<v>(flat + i * v, x);
#pragma unroll
    for (int j = 0; j < v; ++j) sum += static_cast<double>(x[j]) * static_cast<double>(x[j]);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void finish_kernel(const double* partials, int n, double* sum) {
  double total = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += kThreads) total += partials[i];
  total = block_sum(total);
  if (threadIdx.x == 0) *sum = total;
}

template <typename G, typename P, int v>
__global__ void adam_kernel(float* main, const G* grad, float* m, float* s, P* param, int64_t vectors, AdamFactors f) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= vectors) return;
  float value[v], g[v], first[v], second[v];
  load<v>(main + i * v, value);
  load<v>(grad + i * v, g);
  load<v>(m + i * v, first);
  load<v>(s + i * v, second);
#pragma unroll
  for (int j = 0; j < v; ++j) {
    g[j] = g[j] * f.grad_scale + f.added_decay * value[j];
    first[j] = f.beta1 * first[j] + f.one_minus_beta1 * g[j];
    second[j] = f.beta2 * second[j] + f.one_minus_beta2 * g[j] * g[j];
    value[j] = value[j] * f.keep - f.step_size * first[j] / (sqrtf(second[j]) * f.root_corrected + f.epsilon);
  }
  store<v>(value, main + i * v);
  store<v>(first, m + i * v);
  store<v>(second, s + i * v);
  if (param != nullptr) store<v>(value, param + i * v);
}

template <typename G, typename P, int v>
__global__ void sgd_kernel(float* main, const G* grad, float* momentum, P* param, int64_t vectors, float grad_scale,
                           float mu, float decay, float lr) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= vectors) return;
  float value[v], g[v], b[v];
  load<v>(main + i * v, value);
  load<v>(grad + i * v, g);
  load<v>(momentum + i * v, b);
#pragma unroll
  for (int j = 0; j < v; ++j) {
    b[j] = mu * b[j] + (g[j] * grad_scale + decay * value[j]);
    value[j] -= lr * b[j];
  }
  store<v>(value, main + i * v);
  store<v>(b, momentum + i * v);
  if (param != nullptr) store<v>(value, param + i * v);
}

// run.template operator()<G, P, v>(first, count): the arrays in vectors of 4, and what is left.
template <typename Run>
void for_arrays(const UpdateArrays& a, const Run& run) {
  constexpr int kFour = 4;  // fp32 in 16 bytes
  const bool fits = aligned(a.main) && aligned(a.grad) && aligned(a.first) && aligned(a.second) && aligned(a.param);
  const int64_t vectors = fits ? a.n / kFour : 0, rest = a.n - vectors * kFour;
  for_dtype(a.grad_dtype, [&]<typename G>(G) {
    for_dtype(a.param_dtype, [&]<typename P>(P) {
      if (vectors > 0) run.template operator()<G, P, kFour>(0, vectors);
      if (rest > 0) run.template operator()<G, P, 1>(a.n - rest, rest);
    });
  });
}

unsigned blocks_for(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

template <typename T>
T* behind(void* array, int64_t elements) {
  return array == nullptr ? nullptr : static_cast<T*>(array) + elements;
}

}  // namespace

int64_t add_squares_workspace_cuda() { return kMostBlocks; }

void add_squares_cuda(c10::ScalarType dtype, const void* flat, int64_t n, double* sum, double* workspace,
                      void* stream) {
  int blocks = 0;
  for_dtype(dtype, [&]<typename T>(T) {
    const auto launch = [&]<int v>() {
      const int64_t vectors = n / v;
      blocks = static_cast<int>(std::min<int64_t>(kMostBlocks, (vectors + kThreads - 1) / kThreads));
      if (blocks > 0)
        squares_kernel<T, v>
            <<<blocks, kThreads, 0, stream_from(stream)>>>(static_cast<const T*>(flat), vectors, workspace);
    };
    if (aligned(flat) && n % kVector<T> == 0)
      launch.template operator()<kVector<T>>();
    else
      launch.template operator()<1>();
  });
  finish_kernel<<<1, kThreads, 0, stream_from(stream)>>>(workspace, blocks, sum);
  check_launch("add_squares");
}

void adam_cuda(const UpdateArrays& a, const AdamSettings& settings, const UpdateScalars& scalars, void* stream) {
  const AdamFactors factors = adam_factors(settings, scalars);
  for_arrays(a, [&]<typename G, typename P, int v>(int64_t first, int64_t count) {
    adam_kernel<G, P, v><<<blocks_for(count), kThreads, 0, stream_from(stream)>>>(
        a.main + first, static_cast<const G*>(a.grad) + first, a.first + first, a.second + first,
        behind<P>(a.param, first), count, factors);
  });
  check_launch("adam");
}

void sgd_cuda(const UpdateArrays& a, const SgdSettings& settings, const UpdateScalars& u, void* stream) {
  const auto f = [](double x) { return static_cast<float>(x); };
  for_arrays(a, [&]<typename G, typename P, int v>(int64_t first, int64_t count) {
    sgd_kernel<G, P, v><<<blocks_for(count), kThreads, 0, stream_from(stream)>>>(
        a.main + first, static_cast<const G*>(a.grad) + first, a.first + first, behind<P>(a.param, first), count,
        f(u.grad_scale), f(settings.momentum), f(u.weight_decay), f(u.lr));
  });
  check_launch("sgd");
}

}  // namespace megalith::ops
