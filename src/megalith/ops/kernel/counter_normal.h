// Normal and uniform random numbers that are functions of (key, index), so that any part of a tensor can be drawn on
// its own, on any device: ranks that hold different shards of a weight draw the same weight.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith::ops {

// The position of a rectangle in a matrix of `columns` columns whose elements are counted row by row.
struct CountedRectangle {
  int64_t columns = 0;  // width of the whole matrix
  int64_t first_row = 0, first_column = 0;
};

// Fills out [rows, columns], of any floating dtype, with mean + std · n(key, index in the whole matrix), rounded to
// fp32 and then to the dtype. Uses Philox-4x32-10 and Box-Muller in fp64. The numbers must not change between versions
// and are the same bits on every device: the host computes the few numbers whose rounding the CUDA kernel cannot
// decide.
void fill_counter_normal(const at::Tensor& out, uint64_t key, const CountedRectangle& where, double mean, double std);

// Fills out with numbers that are uniform in [-bound, bound) in the same way. Draws on the host.
void fill_counter_uniform(const at::Tensor& out, uint64_t key, const CountedRectangle& where, double bound);

}  // namespace megalith::ops
