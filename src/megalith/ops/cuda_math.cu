#include "megalith/ops/cuda_math.cuh"

namespace megalith::ops {

namespace {

constexpr int kColumns = 32, kRows = 8;

__global__ void column_sums_kernel(const float* partials, int64_t n, int64_t width, float* sums) {
  __shared__ float shared[kRows][kColumns];
  const int64_t column = int64_t{blockIdx.x} * kColumns + threadIdx.x;
  float sum = 0;
  if (column < width)
    for (int64_t row = threadIdx.y; row < n; row += kRows) sum += partials[row * width + column];
  shared[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  for (int row = 1; row < kRows; ++row) sum += shared[row][threadIdx.x];
  sums[column] = sum;
}

}  // namespace

void column_sums_cuda(const float* partials, int64_t n, int64_t width, float* sums, cudaStream_t stream) {
  if (width == 0) return;
  const auto blocks = static_cast<unsigned>((width + kColumns - 1) / kColumns);
  column_sums_kernel<<<blocks, dim3(kColumns, kRows), 0, stream>>>(partials, n, width, sums);
  check_launch("column_sums");
}

}  // namespace megalith::ops
