// Passes over flat gradient buffers: norms, checks, scaling. One read of the memory each.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "megalith/base/exact_sum.h"

namespace megalith::ops {

// Squares are summed in blocks of this many elements, counted from the start of the tensor, each in fp64 and always in
// the same way; the blocks' sums are added exactly. So the total does not depend on how a buffer is cut, as long as
// cuts are at multiples of it.
inline constexpr int64_t kFlatBlock = 64;

// Adds the squares of flat [n] (contiguous) to `sum`. Infinities and NaN are counted there. On CUDA each tensor's own
// sum is in fp64, and several are read back together.
void add_squares(std::span<const at::Tensor> flats, ExactSum& sum);
inline void add_squares(const at::Tensor& flat, ExactSum& sum) { add_squares(std::span(&flat, 1), sum); }

// The same sum of flat [n] as one fp64 number on its device, which the host does not wait for. NaN or infinite when an
// element is. On the CPU the exact sum, rounded.
at::Tensor sum_of_squares(const at::Tensor& flat);

// Elements that are exactly zero.
int64_t count_zeros(const at::Tensor& flat);

// flat *= factor (nothing is written for 1), and whether every element was finite before.
bool scale_and_check_(const at::Tensor& flat, double factor);
// The same as a number on flat's device, which the host does not wait for: 0 when all were.
at::Tensor scale_and_flag_(const at::Tensor& flat, double factor);

}  // namespace megalith::ops
