// y += bias + residual on CUDA: one thread per vector of v elements (16 bytes) of y. Reads y and the residual, writes
// y: 6 bytes per element of bf16; the bias comes from the cache. Only for products that cuBLASLt does not take: there
// the product adds both, and no pass over y is needed.
//
//   thread i   y[i v ... i v + v), column = i v mod h;   y += bias[column] + residual
#include "megalith/ops/gemm/gemm_internal.h"
#include "megalith/ops/kernel/cuda_math.cuh"

namespace megalith::ops {

namespace {

constexpr int kThreads = 256;

// Sums in fp32 and rounds once. `raw_bias` says that the bias has type T rather than fp32; row_vectors is h / v.
template <typename T, int v>
__global__ void add_kernel(T* y, const void* bias, bool raw_bias, const T* residual, int64_t vectors,
                           int64_t row_vectors) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= vectors) return;
  const int64_t column = i % row_vectors * v;
  float value[v], added[v];
  load<v>(y + i * v, value);
  load<v>(residual + i * v, added);
#pragma unroll
  for (int j = 0; j < v; ++j) value[j] += small_element<T>(bias, raw_bias, column + j) + added[j];
  store<v>(value, y + i * v);
}

}  // namespace

void add_bias_residual_cuda(c10::ScalarType dtype, void* y, const void* bias, bool raw_bias, const void* residual,
                            int64_t t, int64_t h, void* stream) {
  if (t * h == 0) return;
  for_dtype(dtype, [&]<typename T>(T) {
    const auto run = [&]<int v>() {
      const int64_t vectors = t * h / v;
      const auto blocks = static_cast<unsigned>((vectors + kThreads - 1) / kThreads);
      launch("add_bias_residual", add_kernel<T, v>, {blocks, kThreads, stream}, static_cast<T*>(y), bias, raw_bias,
             static_cast<const T*>(residual), vectors, h / v);
    };
    if (h % kVector<T> == 0 && aligned(y) && aligned(residual))
      run.template operator()<kVector<T>>();
    else
      run.template operator()<1>();
  });
}

}  // namespace megalith::ops
