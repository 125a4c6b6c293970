// Small fp32 matrix products on buffers that lie in cache, for kernels that compute between them (attention). Large
// products belong to at::mm.
#pragma once

#include <cstdint>

namespace megalith::ops {

// Columns of b and c come in multiples of this, padded with zeros where needed.
inline constexpr int64_t kGemmColumns = 16;
inline constexpr int64_t gemm_padded(int64_t columns) {
  return (columns + kGemmColumns - 1) / kGemmColumns * kGemmColumns;
}

// The part of a product that matters: (i, j) with i + lo <= j < i + hi, where i counts the rows of a and j the columns
// of b (columns_banded) or the depth (depth_banded). What lies outside may or may not be computed.
struct GemmBand {
  static constexpr int64_t kFar = int64_t{1} << 40;
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
  int64_t m, n, k;  // n: a multiple of kGemmColumns
  bool accumulate;  // false: c is written
  // Not both at once. Without accumulate a depth band still writes all of c.
  GemmBand columns = {};
  GemmBand depth = {};
};

void small_gemm(const SmallGemm& gemm);

}  // namespace megalith::ops
