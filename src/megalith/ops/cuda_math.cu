#include "megalith/ops/cuda_math.cuh"

namespace megalith::ops {

namespace {

constexpr int kColumns = 8, kRows = 32;  // of a block: 32 bytes of a row, as memory is read

// A warp ends up with a column.
__global__ void column_sums_kernel(const float* partials, int64_t n, SumsOut out) {
  __shared__ float shared[kColumns][kRows + 1];
  const int x = static_cast<int>(threadIdx.x) % kColumns, y = static_cast<int>(threadIdx.x) / kColumns;
  if (const int64_t column = int64_t{blockIdx.x} * kColumns + x; column < out.width) {
    float sum = 0;
#pragma unroll 4
    for (int64_t row = y; row < n; row += kRows) sum += partials[row * out.width + column];
    shared[x][y] = sum;
  }
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32, mine = static_cast<int>(threadIdx.x) / 32;
  const int64_t column = int64_t{blockIdx.x} * kColumns + mine;
  if (column >= out.width) return;
  const float sum = warp_sum(shared[mine][lane]);
  if (lane != 0) return;
  out.sums[column] = out.add ? out.sums[column] + sum : sum;
}

}  // namespace

void column_sums_cuda(const float* partials, int64_t n, const SumsOut& out, void* stream) {
  if (out.width == 0) return;
  const auto blocks = static_cast<unsigned>((out.width + kColumns - 1) / kColumns);
  launch("column_sums", column_sums_kernel, {blocks, kColumns * kRows, stream}, partials, n, out);
}

}  // namespace megalith::ops
