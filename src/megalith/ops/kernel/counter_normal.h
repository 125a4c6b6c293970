// Normal and uniform random numbers that are functions of (key, index): any part of a tensor can be drawn on its own,
// on any device.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith::ops {

// Where a rectangle lies in a matrix of `columns` columns whose elements are counted row by row.
struct CountedRectangle {
  int64_t columns = 0;  // of the whole matrix
  int64_t first_row = 0, first_column = 0;
};

// out [rows, columns] of any floating dtype: element = mean + std · n(key, its index in the whole matrix), rounded to
// fp32 and then to the dtype. Philox-4x32-10 and Box-Muller in fp64. The numbers may not change between versions, and
// are the same bits on every device: the CUDA kernel leaves to the host what its own logarithm and cosine cannot
// decide.
void fill_counter_normal(const at::Tensor& out, uint64_t key, const CountedRectangle& where, double mean, double std);

// The same with numbers that are uniform in [-bound, bound). Drawn on the host.
void fill_counter_uniform(const at::Tensor& out, uint64_t key, const CountedRectangle& where, double bound);

}  // namespace megalith::ops
