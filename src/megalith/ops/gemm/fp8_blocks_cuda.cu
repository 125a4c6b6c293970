// Casts to fp8 with one scale per block of numbers, both orders of the matrix in one pass. Legend: r rows, c columns.
//
// Who owns what: a block casts a square of 128 x 128; 16 threads across and 16 down have 8 x 8 numbers each, in
// registers. A warp is two rows of threads, so that
//   a row's 128 numbers    are in 16 neighboring lanes: their maximum takes four shuffles;
//   a column's 128 numbers are in 16 threads of 8 warps: one shuffle, then shared memory, one line per warp.
// The cast for the other order goes through shared memory ([column][rows / 8], 17 pieces of 8 bytes per line), so that
// 16 threads write the 128 bytes of a column.
//
//              thread (down, across) of 16 x 16
//   128 rows | 8 x 8 | 8 x 8 | ... 16 across |      reads 8 rows of 16 bytes (bf16); a row of the square is 256
//            | 8 x 8 | ...                   |      contiguous bytes, read by half a warp
//            | ... 16 down                   |
//
// y = saturate(x · scale), with the largest power of two as scale that keeps the block's max |x| within the reach.
// Memory traffic: x is read once, each order written once, 1 byte per element, plus a scale per 128 numbers: 4 bytes
// per element of bf16. A power of two as scale makes the division exact: only the cast rounds. Measured on an H200
// against a copy of as many bytes (docs/gpu.md): strips of 16384 x 4096 0.84.
#include "megalith/ops/gemm/fp8_cuda.cuh"

namespace megalith::ops {

namespace {

constexpr int kThreads = 256, kSide = 128, kEach = 8;
constexpr int kAcross = kSide / kEach;  // threads across, and down
constexpr int kWarps = kThreads / 32;
constexpr unsigned kAll = 0xffffffffU;

// Returns the largest power of two that keeps `largest` within the reach; 1 for blocks of zeros or with infinities.
// Clearing the mantissa of a float leaves its power of two: 448 / 3.0 = 149.3 = 2^7 · 1.17 gives 128, and 3.0 becomes
// 384.
template <Fp8Kind kind>
__device__ inline float scale_for(float largest) {
  const float wanted = kFp8Reach<kind> / largest;
  if (!(largest > 0) || !isfinite(largest) || !isfinite(wanted)) return 1;
  return __uint_as_float(__float_as_uint(wanted) & 0x7f800000U);
}

// Scales of a thread's rows and columns.
struct Scales {
  float row[kEach], column[kEach];
};

// Shared memory for maxima and scales.
struct Scratch {
  float by_warp[kWarps][kSide];  // largest magnitudes of columns in the rows of one warp
  float column[kSide];           // scales
};

// Computes the scales of strips: of each row's and of each column's 128 numbers.
template <Fp8Kind kind>
__device__ inline Scales scales_of_strips(const float (&value)[kEach][kEach], Scratch& scratch) {
  const int across = static_cast<int>(threadIdx.x) % kAcross, warp = static_cast<int>(threadIdx.x) / 32;
  float row[kEach] = {}, column[kEach] = {};
#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      row[i] = fmaxf(row[i], fabsf(value[i][j]));
      column[j] = fmaxf(column[j], fabsf(value[i][j]));
    }
  Scales scales;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int lane = kAcross / 2; lane > 0; lane /= 2) row[i] = fmaxf(row[i], __shfl_xor_sync(kAll, row[i], lane));
    scales.row[i] = scale_for<kind>(row[i]);
    column[i] = fmaxf(column[i], __shfl_xor_sync(kAll, column[i], kAcross));
  }
  // Both rows of threads in a warp know its 16 rows' maxima now; the first one writes them.
  if (threadIdx.x % 32 < kAcross)
#pragma unroll
    for (int j = 0; j < kEach; ++j) scratch.by_warp[warp][across * kEach + j] = column[j];
  __syncthreads();
  if (threadIdx.x < kSide) {
    float most = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) most = fmaxf(most, scratch.by_warp[w][threadIdx.x]);
    scratch.column[threadIdx.x] = scale_for<kind>(most);
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kEach; ++j) scales.column[j] = scratch.column[across * kEach + j];
  return scales;
}

// Computes one scale for the whole square, as weights have it: it serves both orders.
template <Fp8Kind kind>
__device__ inline Scales scale_of_square(const float (&value)[kEach][kEach], Scratch& scratch) {
  float most = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) most = fmaxf(most, fabsf(value[i][j]));
  most = warp_max(most);
  if (threadIdx.x % 32 == 0) scratch.column[threadIdx.x / 32] = most;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kWarps; ++w) most = fmaxf(most, scratch.column[w]);
  const float scale = scale_for<kind>(most);
  Scales scales;
#pragma unroll
  for (int i = 0; i < kEach; ++i) scales.row[i] = scales.column[i] = scale;
  return scales;
}

// One block per square. Scales are stored inverted, as the product wants them: of strips [c/128, r] and [r/128, c], of
// squares [r/128, c/128] and its transpose.
template <typename T, Fp8Kind kind>
__global__ void __launch_bounds__(kThreads) cast_kernel(Fp8BlockArrays to) {
  __shared__ Scratch scratch;
  __shared__ uint2 turned[kSide][kAcross + 1];
  const int across = static_cast<int>(threadIdx.x) % kAcross, down = static_cast<int>(threadIdx.x) / kAcross;
  const int64_t row = int64_t{blockIdx.y} * kSide + down * kEach, column = int64_t{blockIdx.x} * kSide + across * kEach;
  const T* x = static_cast<const T*>(to.x);
  float value[kEach][kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) load_all(x + (row + i) * to.c + column, value[i]);
  const Scales scale = to.strips ? scales_of_strips<kind>(value, scratch) : scale_of_square<kind>(value, scratch);
  if (to.rows != nullptr) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float s = scale.row[i];
      const auto& v = value[i];
      const uint2 bytes{cast_four<kind>(v[0] * s, v[1] * s, v[2] * s, v[3] * s),
                        cast_four<kind>(v[4] * s, v[5] * s, v[6] * s, v[7] * s)};
      *reinterpret_cast<uint2*>(static_cast<uint8_t*>(to.rows) + (row + i) * to.c + column) = bytes;
      if (to.strips && across == 0) to.inverse_scale[blockIdx.x * to.r + row + i] = 1 / s;
    }
    if (!to.strips && threadIdx.x == 0) to.inverse_scale[blockIdx.y * gridDim.x + blockIdx.x] = 1 / scale.row[0];
  }
  if (to.columns == nullptr) return;
#pragma unroll
  for (int j = 0; j < kEach; ++j) {
    const float s = scale.column[j];
    turned[across * kEach + j][down] = {
        cast_four<kind>(value[0][j] * s, value[1][j] * s, value[2][j] * s, value[3][j] * s),
        cast_four<kind>(value[4][j] * s, value[5][j] * s, value[6][j] * s, value[7][j] * s)};
    if (to.strips && down == 0) to.columns_inverse_scale[blockIdx.y * to.c + column + j] = 1 / s;
  }
  if (!to.strips && threadIdx.x == 0)
    to.columns_inverse_scale[blockIdx.x * gridDim.y + blockIdx.y] = 1 / scale.column[0];
  __syncthreads();
  // 16 threads write the 128 bytes of a column: half a warp per column, two columns per warp and step.
  for (int piece = static_cast<int>(threadIdx.x); piece < kSide * kAcross; piece += kThreads) {
    const int which = piece / kAcross, part = piece % kAcross;
    uint8_t* out = static_cast<uint8_t*>(to.columns) + (int64_t{blockIdx.x} * kSide + which) * to.r;
    *reinterpret_cast<uint2*>(out + int64_t{blockIdx.y} * kSide + part * kEach) = turned[which][part];
  }
}

}  // namespace

void cast_fp8_blocks_cuda(const Fp8BlockArrays& arrays, void* stream) {
  if (arrays.r * arrays.c == 0) return;
  if (!aligned(arrays.x)) fail_kernel("cast_fp8_blocks", "the matrix does not start at a multiple of 16 bytes");
  const dim3 blocks(static_cast<unsigned>(arrays.c / kSide), static_cast<unsigned>(arrays.r / kSide));
  for_dtype(arrays.dtype, [&]<typename T>(T) {
    const auto kernel = arrays.kind == Fp8Kind::kE4m3 ? cast_kernel<T, Fp8Kind::kE4m3> : cast_kernel<T, Fp8Kind::kE5m2>;
    launch("cast_fp8_blocks", kernel, {blocks, kThreads, stream}, arrays);
  });
}

}  // namespace megalith::ops
