// Casts to fp8 with one scale per tensor, both orders of the matrix in one pass. Legend: r rows, c columns.
//
// Who owns what: a block casts a tile of 128 x 64; 8 threads across and 32 down have 4 rows and 8 columns each:
//
//             8 columns
//   4 rows  | 8 bytes |   written as they are: 8 bytes per row and thread, 64 bytes of a row per 8 threads
//           | ...     |   4 x 4 bytes are transposed in registers, go through shared memory as words [column][row / 4]
//                         (33 words per line, against bank conflicts), and are written 16 bytes (rows) per thread
//
// In bytes per element of bf16: 2 read and 1 + 1 written with a given scale; 2 more read without.
//
// y = saturate(x · scale), scale = largest number / max |x| or given. Memory traffic: x is read once and each order
// written once, 1 byte per element; without a given scale, a pass before that finds max |x|. With a given scale
// (delayed scaling) the same pass finds max |x| for later steps. Measured on an H200 against a copy of as many bytes
// (docs/gpu.md), 16384 x 4096: 0.85, with a given scale 0.93.
#include "megalith/ops/gemm/fp8_cuda.cuh"

namespace megalith::ops {

namespace {

constexpr int kThreads = 256;
constexpr int kTileRows = 128, kTileColumns = 64;
constexpr int kRowsEach = 4, kColumnsEach = 8;

// Raises *largest to x atomically. Non-negative floats are in the order of their bits as integers. Reads first: most
// callers have nothing to write.
__device__ inline void raise_to(float* largest, float x) {
  if (x > __ldcg(largest)) atomicMax(reinterpret_cast<int*>(largest), __float_as_int(x));
}

// One vector per thread, then the next gridDim.x · 256 further on; one atomic maximum per warp, whose order is
// irrelevant.
template <typename T, int v>
__global__ void largest_kernel(const T* x, int64_t vectors, float* largest) {
  float most = 0;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < vectors; i += int64_t{gridDim.x} * kThreads) {
    float value[v];
    load<v>(x + i * v, value);
#pragma unroll
    for (int j = 0; j < v; ++j) most = fmaxf(most, fabsf(value[j]));
  }
  most = warp_max(most);
  if (threadIdx.x % 32 == 0) raise_to(largest, most);
}

// Casts one tile. The scale comes from the pass before (`largest`) or from the caller (`scale`); in the second case
// this pass raises `seen` to max |x|. Either order may be nullptr.
template <typename T, Fp8Kind kind>
__global__ void __launch_bounds__(kThreads) cast_kernel(Fp8Arrays to) {
  __shared__ unsigned tile[kTileColumns][kTileRows / 4 + 1];
  const T* x = static_cast<const T*>(to.x);
  auto *rows = static_cast<uint8_t*>(to.rows), *columns = static_cast<uint8_t*>(to.columns);
  const int64_t r = to.r, c = to.c;
  float scale = 1;
  if (to.largest == nullptr)
    scale = *to.scale;
  else if (const float most = *to.largest; most > 0 && isfinite(most))
    scale = kFp8Reach<kind> / most;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
    *to.inverse_scale = 1 / scale;
    if (to.largest != nullptr) *to.scale = scale;
    if (to.largest != nullptr && to.seen != nullptr) raise_to(to.seen, *to.largest);
  }
  const bool looks = to.largest == nullptr && to.seen != nullptr;  // this pass has to find max |x|
  float seen = 0;

  const int group = static_cast<int>(threadIdx.x) % 8, four = static_cast<int>(threadIdx.x) / 8;
  const int64_t row = int64_t{blockIdx.y} * kTileRows + four * kRowsEach;
  const int64_t column = int64_t{blockIdx.x} * kTileColumns + group * kColumnsEach;
  unsigned words[2][kRowsEach] = {};  // the first and the last four columns of each row
  if (row < r && column < c) {
    float value[kRowsEach][kColumnsEach];
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) load_all(x + (row + i) * c + column, value[i]);
#pragma unroll
    for (int i = 0; i < kRowsEach; ++i) {
#pragma unroll
      for (int j = 0; j < kColumnsEach; ++j) {
        if (looks) seen = fmaxf(seen, fabsf(value[i][j]));
        value[i][j] *= scale;
      }
      const auto& v = value[i];
      words[0][i] = cast_four<kind>(v[0], v[1], v[2], v[3]);
      words[1][i] = cast_four<kind>(v[4], v[5], v[6], v[7]);
      if (rows != nullptr) *reinterpret_cast<uint2*>(rows + (row + i) * c + column) = {words[0][i], words[1][i]};
    }
  }
  if (looks) {
    seen = warp_max(seen);
    if (threadIdx.x % 32 == 0) raise_to(to.seen, seen);
  }
  // Rows and columns past the end hold zeros: `words` starts as zeros, and no such element is written.
  if (columns == nullptr) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    unsigned turned[4];
    transpose_bytes(words[half], turned);
#pragma unroll
    for (int k = 0; k < 4; ++k) tile[group * kColumnsEach + half * 4 + k][four] = turned[k];
  }
  __syncthreads();
  // A thread writes 16 rows of a column, twice.
  for (int piece = static_cast<int>(threadIdx.x); piece < kTileColumns * kTileRows / 16; piece += kThreads) {
    const int part = piece % (kTileRows / 16), which = piece / (kTileRows / 16);
    const int64_t to_row = int64_t{blockIdx.y} * kTileRows + part * 16;
    const int64_t to_column = int64_t{blockIdx.x} * kTileColumns + which;
    if (to_row >= r || to_column >= c) continue;
    const unsigned* from = tile[which] + part * 4;
    *reinterpret_cast<uint4*>(columns + to_column * r + to_row) = {from[0], from[1], from[2], from[3]};
  }
}

}  // namespace

void largest_magnitude_cuda(c10::ScalarType dtype, const void* x, int64_t n, float* largest, void* stream) {
  if (n == 0) return;
  for_dtype(dtype, [&]<typename T>(T) {
    const auto run = [&]<int v>() {
      const int64_t vectors = n / v, wanted = (vectors + kThreads - 1) / kThreads;
      const int64_t blocks = std::min(wanted, resident_blocks(largest_kernel<T, v>, kThreads));
      launch("largest_magnitude", largest_kernel<T, v>, {static_cast<unsigned>(blocks), kThreads, stream},
             static_cast<const T*>(x), vectors, largest);
    };
    if (aligned(x) && n % kVector<T> == 0)
      run.template operator()<kVector<T>>();
    else
      run.template operator()<1>();
  });
}

void cast_fp8_cuda(const Fp8Arrays& arrays, void* stream) {
  if (arrays.r * arrays.c == 0) return;
  if (!aligned(arrays.x)) fail_kernel("cast_fp8", "the matrix does not start at a multiple of 16 bytes");
  const dim3 blocks(static_cast<unsigned>((arrays.c + kTileColumns - 1) / kTileColumns),
                    static_cast<unsigned>((arrays.r + kTileRows - 1) / kTileRows));
  for_dtype(arrays.dtype, [&]<typename T>(T) {
    const auto kernel = arrays.kind == Fp8Kind::kE4m3 ? cast_kernel<T, Fp8Kind::kE4m3> : cast_kernel<T, Fp8Kind::kE5m2>;
    launch("cast_fp8", kernel, {blocks, kThreads, stream}, arrays);
  });
}

}  // namespace megalith::ops
