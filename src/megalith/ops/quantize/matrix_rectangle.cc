#include "megalith/ops/quantize/matrix_rectangle.h"

#include "megalith/base/error.h"
#include "megalith/ops/kernel/tensor_internal.h"

namespace megalith::ops {

void check_inside(const MatrixRectangle& where, int64_t numel) {
  check(where.first_row >= 0 && where.first_column >= 0 && where.first_column + where.columns <= where.whole_columns &&
            (where.first_row + where.rows) * where.whole_columns <= numel,
        "a rectangle of {} x {} does not lie inside a tensor of {} numbers", where.rows, where.columns, numel);
}

void check_fills(const at::Tensor& to, int64_t row, int64_t column, int64_t rows, int64_t columns) {
  check(to.dim() == 2 && to.is_contiguous() && row >= 0 && column >= 0 && row + to.size(0) <= rows &&
            column + to.size(1) <= columns,
        "numbers from ({}, {}) on of a rectangle of {} x {} do not fill a tensor {}", row, column, rows, columns,
        shape_text(to));
}

}  // namespace megalith::ops
