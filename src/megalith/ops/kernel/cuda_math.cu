// Sums of columns: the second step of every gradient of a weight or bias that is a sum over rows. The first step leaves
// one row of partial sums per block, so that n is a few hundred to a few thousand here; this pass reads 4 bytes per
// partial sum and writes one element per column. Adding them with atomics in the first step would save the pass, but
// make the last bits depend on the timing of blocks.
//
//   partials [n, width]     columns 8b ... 8b + 7 belong to block b;   thread (x, y) has column x, rows y, y + 32, ...
#include "megalith/ops/kernel/cuda_math.cuh"

namespace megalith::ops {

namespace {

// A block sums 8 columns: 32 bytes of a row, the smallest piece that memory delivers. Few columns per block make many
// blocks, which narrow matrices need to keep the device busy.
constexpr int kColumns = 8, kRows = 32;

// Writes column i of an output in its own type; only fp32 outputs can be added to.
__device__ inline void write_sum(const SumsOut& out, int64_t i, float sum) {
  if (out.dtype == c10::ScalarType::BFloat16)
    static_cast<__nv_bfloat16*>(out.sums)[i] = from_float<__nv_bfloat16>(sum);
  else if (out.dtype == c10::ScalarType::Half)
    static_cast<__half*>(out.sums)[i] = from_float<__half>(sum);
  else
    static_cast<float*>(out.sums)[i] = out.add ? static_cast<float*>(out.sums)[i] + sum : sum;
}

// First, thread (x, y) of 8 x 32 sums rows y, y + 32, ... of column x. Then the sums are transposed through shared
// memory (33 floats per line, against bank conflicts), and each of the 8 warps adds the 32 sums of one column by
// shuffles.
__global__ void __launch_bounds__(kColumns* kRows)
    column_sums_kernel(const float* partials, int n, SumsOut first, SumsOut second) {
  constexpr int kAtOnce = 8;  // loads in flight per thread
  __shared__ float shared[kColumns][kRows + 1];
  const int x = static_cast<int>(threadIdx.x) % kColumns, y = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t width = first.width + second.width;
  if (const int64_t column = int64_t{blockIdx.x} * kColumns + x; column < width) {
    const float* from = partials + column;
    float sum = 0;
    int row = y;
    for (; row + (kAtOnce - 1) * kRows < n; row += kAtOnce * kRows) {
      float part[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) part[k] = from[(row + k * kRows) * width];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) sum += part[k];
    }
    for (; row < n; row += kRows) sum += from[row * width];
    shared[x][y] = sum;
  }
  __syncthreads();
  // Now a warp per column: lane l takes the sum of thread row l, so that 32 partial sums need one tree of shuffles.
  const int lane = static_cast<int>(threadIdx.x) % 32, mine = static_cast<int>(threadIdx.x) / 32;
  const int64_t column = int64_t{blockIdx.x} * kColumns + mine;
  if (column >= width) return;
  const float sum = warp_sum(shared[mine][lane]);
  if (lane != 0) return;
  if (column < first.width)
    write_sum(first, column, sum);
  else
    write_sum(second, column - first.width, sum);
}

}  // namespace

void column_sums_cuda(const float* partials, int64_t n, const SumsOut& first, const SumsOut& second, void* stream) {
  const int64_t width = first.width + second.width;
  if (width == 0) return;
  const auto blocks = static_cast<unsigned>((width + kColumns - 1) / kColumns);
  launch("column_sums", column_sums_kernel, {blocks, kColumns * kRows, stream}, partials, static_cast<int>(n), first,
         second);
}

}  // namespace megalith::ops
