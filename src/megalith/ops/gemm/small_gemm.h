// Small fp32 matrix products on buffers in the cache, for kernels that compute something between products (attention).
// Large products belong to at::mm.
//
//   small_gemm({.a = a, .a_row = k, .a_column = 1, .b = b, .b_row = n, .c = c, .c_row = n,
//               .m = m, .n = n, .k = k, .accumulate = false});     // c [m, n] = a [m, k] · b [k, n]
#pragma once

#include <cstdint>

namespace megalith::ops {

// Columns of b and c are multiples of this, padded with zeros where needed.
inline constexpr int64_t kGemmColumns = 16;
inline constexpr int64_t gemm_padded(int64_t columns) {
  return (columns + kGemmColumns - 1) / kGemmColumns * kGemmColumns;
}

// The part of a product that matters: (i, j) with i + lo <= j < i + hi, where i counts the rows of a and j the columns
// of b (SmallGemm::columns) or the depth (SmallGemm::depth). Elements outside may or may not be computed. Causal masks
// and windows are such bands; a causal product costs about half.
struct GemmBand {
  static constexpr int64_t kFar = int64_t{1} << 40;  // beyond every index, and far from overflow when one is added
  int64_t lo = -kFar;
  int64_t hi = kFar;
};

// c (+)= a · b, with a [m, k], b [k, n], c [m, n].
struct SmallGemm {
  const float* a;
  int64_t a_row, a_column;  // distances between rows and between columns: a may be transposed
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row;
  int64_t m, n, k;  // n is a multiple of kGemmColumns
  bool accumulate;  // adds to c instead of overwriting it
  // At most one of them. Without `accumulate` a depth band still writes all of c.
  GemmBand columns = {};
  GemmBand depth = {};
};

// Computes one product on the calling thread, with the newest instruction set of the machine. The sum over the depth
// has a fixed order.
void small_gemm(const SmallGemm& gemm);

}  // namespace megalith::ops
