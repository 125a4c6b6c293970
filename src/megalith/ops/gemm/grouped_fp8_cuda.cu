// Casts to e4m3 with one scale per row, for grouped products in fp8. Legend: g groups, r rows, c columns.
//
// Rows: a warp casts a row. Its lanes read pieces of 16 bytes in turns and keep them in registers, so that x is read
// once; rows of more than 4096 numbers in 16 bits are read again, mostly from the cache.
//
//   lane   0 1 2 … 31 | 0 1 2 … 31 | …      pieces of 16 bytes of one row; maximum by five shuffles
//
// Columns: a block has 64 columns of one matrix, and goes down them twice: for the maxima, which 32 threads per column
// pass through shared memory, then for the cast. The second time most of it comes from the cache. The cast goes by
// tiles of 128 x 64 like that of fp8_cuda.cu, and writes 16 numbers of a column at once.
//
//             8 columns
//   4 rows  | 8 bytes |   4 x 4 bytes are transposed in registers, go through shared memory as words
//           | ...     |   [column][row / 4], and leave as 16 bytes (rows) per thread
//
// y = saturate(x · 448 / max |x|), the maximum being that of the row (of the result). Memory traffic per element of
// bf16: 2 bytes read and 1 written; for columns up to 2 more read.
#include "megalith/ops/gemm/fp8_cuda.cuh"

namespace megalith::ops {

namespace {

constexpr Fp8Kind kKind = Fp8Kind::kE4m3;
constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTileRows = 128, kTileColumns = 64;
constexpr int kRowsEach = 4, kColumnsEach = 8;
constexpr int kAcross = kTileColumns / kColumnsEach, kDown = kThreads / kAcross;  // threads

// Returns the factor that makes `largest` the largest number; 1 for zeros, and where it is not finite.
__device__ inline float scale_for(float largest) {
  return largest > 0 && isfinite(largest) ? kFp8Reach<kKind> / largest : 1.0F;
}

// The larger magnitude, or NaN if either is NaN: fmaxf would drop it.
__device__ inline float larger(float a, float b) { return a > b || a != a ? a : b; }

// Returns the largest magnitude of the elements of a piece.
template <typename T>
__device__ inline float largest_of(const Raw<T, kVector<T>>& raw) {
  float value[kVector<T>], most = 0;
  unpack<T, kVector<T>>(raw, value);
#pragma unroll
  for (int i = 0; i < kVector<T>; ++i) most = larger(most, fabsf(value[i]));
  return most;
}

// Casts a piece to 4 or 8 bytes.
template <typename T>
__device__ inline void cast_piece(const Raw<T, kVector<T>>& raw, float scale, uint8_t* to) {
  float value[kVector<T>];
  unpack<T, kVector<T>>(raw, value);
  Words<kVector<T> / 4> words;
#pragma unroll
  for (int i = 0; i < kVector<T>; i += 4)
    words.word[i / 4] =
        cast_four<kKind>(value[i] * scale, value[i + 1] * scale, value[i + 2] * scale, value[i + 3] * scale);
  *reinterpret_cast<Words<kVector<T> / 4>*>(to) = words;
}

// Returns the maximum over a warp; NaN if a lane has NaN.
__device__ inline float warp_larger(float x) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) x = larger(x, __shfl_xor_sync(0xffffffffU, x, lane));
  return x;
}

// `kept`: pieces that a lane keeps; 0 reads each piece twice.
template <typename T, int kept>
__global__ void __launch_bounds__(kThreads) rows_kernel(Fp8RowArrays from, uint8_t* values, float* inverse_scale) {
  constexpr int v = kVector<T>;
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (row >= from.g * from.r) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, pieces = static_cast<int>(from.c / v);
  const T* x = static_cast<const T*>(from.x) + row * from.c;
  uint8_t* to = values + row * from.c;
  Raw<T, v> held[kept > 0 ? kept : 1];
  float most = 0;
  if constexpr (kept > 0) {
#pragma unroll
    for (int k = 0; k < kept; ++k)
      if (const int piece = k * 32 + lane; piece < pieces) {
        held[k] = load_raw<v>(x + piece * v);
        most = larger(most, largest_of<T>(held[k]));
      }
  } else {
    for (int piece = lane; piece < pieces; piece += 32)
      most = larger(most, largest_of<T>(load_raw<v>(x + int64_t{piece} * v)));
  }
  const float scale = scale_for(warp_larger(most));
  if (lane == 0) inverse_scale[row] = 1 / scale;
  if constexpr (kept > 0) {
#pragma unroll
    for (int k = 0; k < kept; ++k)
      if (const int piece = k * 32 + lane; piece < pieces) cast_piece<T>(held[k], scale, to + piece * v);
  } else {
    for (int piece = lane; piece < pieces; piece += 32)
      cast_piece<T>(load_raw<v>(x + int64_t{piece} * v), scale, to + int64_t{piece} * v);
  }
}

// Shared memory of columns_kernel: first maxima, then tiles.
struct ColumnScratch {
  float scale[kTileColumns];
  union {
    float most[kDown][kTileColumns];
    unsigned tile[kTileColumns][kTileRows / 4 + 1];  // 33 words per line, against bank conflicts
  };
};

// Writes the scales of the block's columns to shared memory, and their inverses.
template <typename T>
__device__ inline void find_scales(const T* x, const Fp8RowArrays& from, int64_t column, float* inverse_scale,
                                   ColumnScratch& scratch) {
  const int across = static_cast<int>(threadIdx.x) % kAcross, down = static_cast<int>(threadIdx.x) / kAcross;
  float most[kColumnsEach] = {};
  if (column < from.c)
    for (int64_t row = down; row < from.r; row += kDown) {
      float value[kColumnsEach];
      load_all(x + row * from.c + column, value);
#pragma unroll
      for (int j = 0; j < kColumnsEach; ++j) most[j] = larger(most[j], fabsf(value[j]));
    }
#pragma unroll
  for (int j = 0; j < kColumnsEach; ++j) scratch.most[down][across * kColumnsEach + j] = most[j];
  __syncthreads();
  const int mine = static_cast<int>(threadIdx.x);
  if (mine < kTileColumns) {
    float all = 0;
    for (int i = 0; i < kDown; ++i) all = larger(all, scratch.most[i][mine]);
    scratch.scale[mine] = scale_for(all);
    const int64_t which = int64_t{blockIdx.x} * kTileColumns + mine;
    if (which < from.c) inverse_scale[which] = 1 / scratch.scale[mine];
  }
  __syncthreads();
}

// blockIdx.x is the strip of columns, blockIdx.y the group.
template <typename T>
__global__ void __launch_bounds__(kThreads) columns_kernel(Fp8RowArrays from, uint8_t* values, float* inverse_scale) {
  __shared__ ColumnScratch scratch;
  const int64_t group = blockIdx.y;
  const T* x = static_cast<const T*>(from.x) + group * from.r * from.c;
  uint8_t* to = values + group * from.r * from.c;
  const int across = static_cast<int>(threadIdx.x) % kAcross, down = static_cast<int>(threadIdx.x) / kAcross;
  const int64_t column = int64_t{blockIdx.x} * kTileColumns + across * kColumnsEach;
  find_scales(x, from, column, inverse_scale + group * from.c, scratch);
  float scale[kColumnsEach];
#pragma unroll
  for (int j = 0; j < kColumnsEach; ++j) scale[j] = scratch.scale[across * kColumnsEach + j];
  for (int64_t top = 0; top < from.r; top += kTileRows) {
    unsigned words[2][kRowsEach] = {};  // the first and the last four columns of each row; zeros past the end
    const int64_t row = top + down * kRowsEach;
    if (row < from.r && column < from.c) {
#pragma unroll
      for (int i = 0; i < kRowsEach; ++i) {
        float v[kColumnsEach];
        load_all(x + (row + i) * from.c + column, v);
#pragma unroll
        for (int j = 0; j < kColumnsEach; ++j) v[j] *= scale[j];
        words[0][i] = cast_four<kKind>(v[0], v[1], v[2], v[3]);
        words[1][i] = cast_four<kKind>(v[4], v[5], v[6], v[7]);
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unsigned turned[4];
      transpose_bytes(words[half], turned);
#pragma unroll
      for (int k = 0; k < 4; ++k) scratch.tile[across * kColumnsEach + half * 4 + k][down] = turned[k];
    }
    __syncthreads();
    for (int piece = static_cast<int>(threadIdx.x); piece < kTileColumns * kTileRows / 16; piece += kThreads) {
      const int part = piece % (kTileRows / 16), which = piece / (kTileRows / 16);
      const int64_t to_row = top + part * 16, to_column = int64_t{blockIdx.x} * kTileColumns + which;
      if (to_row >= from.r || to_column >= from.c) continue;
      const unsigned* line = scratch.tile[which] + part * 4;
      *reinterpret_cast<uint4*>(to + to_column * from.r + to_row) = {line[0], line[1], line[2], line[3]};
    }
    __syncthreads();
  }
}

void check_arrays(const char* kernel, const Fp8RowArrays& from, const void* values) {
  if (from.c % 16 != 0 || !aligned(from.x) || !aligned(values))
    fail_kernel(kernel, "rows are not multiples of 16 numbers, or not aligned to 16 bytes");
}

}  // namespace

int compute_capability_major_cuda(int device) {
  if (device < 0) cudaGetDevice(&device);
  int major = 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  return major;
}

void cast_fp8_rows_cuda(const Fp8RowArrays& from, void* values, float* inverse_scale, void* stream) {
  const int64_t rows = from.g * from.r;
  if (rows * from.c == 0) return;
  check_arrays("cast_fp8_rows", from, values);
  for_dtype(from.dtype, [&]<typename T>(T) {
    const int64_t each = (from.c / kVector<T> + 31) / 32;  // pieces per lane
    const auto kernel = each <= 4    ? rows_kernel<T, 4>
                        : each <= 8  ? rows_kernel<T, 8>
                        : each <= 16 ? rows_kernel<T, 16>
                                     : rows_kernel<T, 0>;
    launch("cast_fp8_rows", kernel, {static_cast<unsigned>((rows + kWarps - 1) / kWarps), kThreads, stream}, from,
           static_cast<uint8_t*>(values), inverse_scale);
  });
}

void cast_fp8_columns_cuda(const Fp8RowArrays& from, void* values, float* inverse_scale, void* stream) {
  if (from.g * from.r * from.c == 0) return;
  check_arrays("cast_fp8_columns", from, values);
  if (from.r % 16 != 0) fail_kernel("cast_fp8_columns", "columns are not multiples of 16 numbers");
  const dim3 blocks(static_cast<unsigned>((from.c + kTileColumns - 1) / kTileColumns), static_cast<unsigned>(from.g));
  for_dtype(from.dtype, [&]<typename T>(T) {
    launch("cast_fp8_columns", columns_kernel<T>, {blocks, kThreads, stream}, from, static_cast<uint8_t*>(values),
           inverse_scale);
  });
}

}  // namespace megalith::ops
