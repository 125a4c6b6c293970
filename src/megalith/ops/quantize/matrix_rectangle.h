// The part of a matrix that a rank holds, for weights that are quantized as whole matrices.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith::ops {

// A rectangle of a matrix.
struct MatrixRectangle {
  int64_t first_row = 0, rows = 0;
  int64_t first_column = 0, columns = 0;
  int64_t whole_columns = 0;  // the matrix has so many
};

// Throws InternalError for a rectangle that does not lie inside a matrix of so many numbers.
void check_inside(const MatrixRectangle& where, int64_t numel);
// Throws InternalError unless `to` is a contiguous matrix that numbers from (row, column) on of a rectangle of this
// size can fill.
void check_fills(const at::Tensor& to, int64_t row, int64_t column, int64_t rows, int64_t columns);

}  // namespace megalith::ops
