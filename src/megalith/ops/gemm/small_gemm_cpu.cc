// fp32 products on vector registers. c is computed in tiles of kRows rows and kVectors vectors that stay in registers
// over the whole depth; each step loads one row of b (kVectors vectors) and broadcasts one element of a per row of the
// tile. The tile uses almost all registers, so that enough independent multiply-adds are in flight:
//
//   instruction set   width   accumulators   registers
//   AVX-512           16      6 x 4 = 24     32
//   AVX2               8      6 x 2 = 12     16
//   x86_64 base        4      4 x 2 =  8     16
//   others             4      6 x 4 = 24     32 (NEON)
//
//             | b row p: v0 v1 v2 v3 |         4 vectors of 16 floats (AVX-512)
//   a[0][p]   | sum 0,0 ...  sum 0,3 |         a step of the depth: 4 loads, 6 broadcasts, 24 multiply-adds
//   ...       |                      |
//   a[5][p]   | sum 5,0 ...  sum 5,3 |
//
// Operands are expected in the first- or second-level cache, so there is no packing and no blocking over the depth.
#include <algorithm>

#include "megalith/ops/gemm/small_gemm.h"
#include "megalith/ops/kernel/cpu_math.h"

namespace megalith::ops {

namespace {

// A vector of Width floats that may be at any address.
template <int Width>
struct Vector;
template <>
struct Vector<4> {
  using type = float __attribute__((vector_size(16), aligned(4), may_alias));
};
template <>
struct Vector<8> {
  using type = float __attribute__((vector_size(32), aligned(4), may_alias));
};
template <>
struct Vector<16> {
  using type = float __attribute__((vector_size(64), aligned(4), may_alias));
};

// The part of c that an instruction set holds in registers: kRows x kVectors vectors of kWidth floats.
template <int Width, int Rows, int Vectors>
struct Tile {
  using Vec = typename Vector<Width>::type;
  static constexpr int kWidth = Width, kRows = Rows, kVectors = Vectors;
};
#if defined(__x86_64__)
using TileBase = Tile<4, 4, 2>;
using TileAvx2 = Tile<8, 6, 2>;
using TileAvx512 = Tile<16, 6, 4>;
#else
using TileBase = Tile<4, 6, 4>;
#endif

// Computes one tile: M rows, N vectors wide, k deep.
template <typename T, int M, int N>
MEGALITH_ALWAYS_INLINE void run_tile(const SmallGemm& g, const float* a, const float* b, float* c, int64_t k,
                                     bool accumulate) {
  using Vec = typename T::Vec;
  const int64_t a_row = g.a_row, a_column = g.a_column, b_row = g.b_row, c_row = g.c_row;
  Vec sum[M][N];  // all loops over it are unrolled: indices known to the compiler keep it in registers
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j)
      sum[i][j] = accumulate ? *reinterpret_cast<const Vec*>(c + i * c_row + j * T::kWidth) : Vec{};
  for (int64_t p = 0; p < k; ++p) {
    Vec row[N];
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) row[j] = *reinterpret_cast<const Vec*>(b + j * T::kWidth);
#pragma GCC unroll 8
    for (int i = 0; i < M; ++i) {
      const float x = a[i * a_row];
#pragma GCC unroll 8
      for (int j = 0; j < N; ++j) sum[i][j] += x * row[j];
    }
    a += a_column;
    b += b_row;
  }
#pragma GCC unroll 8
  for (int i = 0; i < M; ++i)
#pragma GCC unroll 8
    for (int j = 0; j < N; ++j) *reinterpret_cast<Vec*>(c + i * c_row + j * T::kWidth) = sum[i][j];
}

// Computes M rows of c, columns [begin, end), in tiles of full width, then of two vectors and of one.
template <typename T, int M>
MEGALITH_ALWAYS_INLINE void run_rows(const SmallGemm& g, const float* a, const float* b, float* c, int64_t k,
                                     int64_t begin, int64_t end) {
  constexpr int64_t kStep = T::kWidth * T::kVectors;
  int64_t j = begin;
  for (; j + kStep <= end; j += kStep) run_tile<T, M, T::kVectors>(g, a, b + j, c + j, k, g.accumulate);
  if constexpr (kStep > kGemmColumns) {
    if (const int64_t rest = (end - j) / T::kWidth; rest >= 2) {
      run_tile<T, M, 2>(g, a, b + j, c + j, k, g.accumulate);
      j += 2 * T::kWidth;
    }
    if (j < end) run_tile<T, M, 1>(g, a, b + j, c + j, k, g.accumulate);
  }
}

// A row of tiles at a time. A band covers that of its first row to that of its last.
template <typename T>
struct Gemm {
  MEGALITH_ALWAYS_INLINE static void run(const SmallGemm* gemm) {
    const SmallGemm& g = *gemm;
    for (int64_t i = 0; i < g.m; i += T::kRows) {
      const int64_t rows = std::min<int64_t>(T::kRows, g.m - i);
      const int64_t j0 = std::clamp<int64_t>(i + g.columns.lo, 0, g.n) / kGemmColumns * kGemmColumns;
      const int64_t j1 = gemm_padded(std::clamp<int64_t>(i + rows - 1 + g.columns.hi, j0, g.n));
      const int64_t k0 = std::clamp<int64_t>(i + g.depth.lo, 0, g.k);
      const int64_t k1 = std::clamp<int64_t>(i + rows - 1 + g.depth.hi, k0, g.k);
      const float* a = g.a + i * g.a_row + k0 * g.a_column;
      const float* b = g.b + k0 * g.b_row;
      float* c = g.c + i * g.c_row;
      // The last rows of a matrix have tiles of their own height: each is compiled with its accumulators in registers.
      switch (rows) {
        case 1:
          run_rows<T, 1>(g, a, b, c, k1 - k0, j0, j1);
          break;
        case 2:
          run_rows<T, 2>(g, a, b, c, k1 - k0, j0, j1);
          break;
        case 3:
          run_rows<T, 3>(g, a, b, c, k1 - k0, j0, j1);
          break;
        case 4:
          run_rows<T, 4>(g, a, b, c, k1 - k0, j0, j1);
          break;
        case 5:
          run_rows<T, 5>(g, a, b, c, k1 - k0, j0, j1);
          break;
        default:
          run_rows<T, T::kRows>(g, a, b, c, k1 - k0, j0, j1);
          break;
      }
    }
  }
};

}  // namespace

void small_gemm(const SmallGemm& gemm) {
#if defined(__x86_64__)
  switch (cpu_level()) {
    case CpuLevel::kAvx512:
      return run_kernel_avx512<Gemm<TileAvx512>>(&gemm);
    case CpuLevel::kAvx2:
      return run_kernel_avx2<Gemm<TileAvx2>>(&gemm);
    case CpuLevel::kBase:
      break;
  }
#endif
  Gemm<TileBase>::run(&gemm);
}

}  // namespace megalith::ops
