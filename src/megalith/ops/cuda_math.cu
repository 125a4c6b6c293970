#include "megalith/ops/cuda_math.cuh"

namespace megalith::ops {

namespace {

constexpr int kColumns = 32, kRows = 32;

__global__ void column_sums_kernel(const float* partials, int64_t n, SumsOut first, SumsOut second) {
  __shared__ float shared[kRows][kColumns + 1];
  const int64_t width = first.width + second.width, column = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  float sum = 0;
  if (column < width)
    for (int64_t row = threadIdx.y; row < n; row += kRows) sum += partials[row * width + column];
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  for (int row = 1; row < kRows; ++row) sum += shared[row][threadIdx.x];
  const bool here = column < first.width;
  float* out = here ? first.sums + column : second.sums + (column - first.width);
  *out = (here ? first.add : second.add) ? *out + sum : sum;
}

}  // namespace

void column_sums_cuda(const float* partials, int64_t n, const SumsOut& first, const SumsOut& second, void* stream) {
  const int64_t width = first.width + second.width;
  if (width == 0) return;
  const auto blocks = static_cast<unsigned>((width + kColumns - 1) / kColumns);
  launch("column_sums", column_sums_kernel, {blocks, dim3(kColumns, kRows), stream}, partials, n, first, second);
}

}  // namespace megalith::ops
