// Passes over flat gradient buffers: norms, checks, scaling. Each reads the memory once.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "megalith/base/exact_sum.h"

namespace megalith::ops {

// Squares are summed in blocks of this many elements, counted from the start of the tensor, each in fp64 and always in
// the same order; the sums of blocks are added exactly. So the total does not depend on how a buffer is cut, as long as
// it is cut at multiples of this.
inline constexpr int64_t kFlatBlock = 64;

// Adds the squares of flat [n] (contiguous) to `sum`, which counts infinities and NaN. On CUDA the sum of each tensor
// is in fp64, and several are read back together.
void add_squares(std::span<const at::Tensor> flats, ExactSum& sum);
inline void add_squares(const at::Tensor& flat, ExactSum& sum) { add_squares(std::span(&flat, 1), sum); }

// Returns the sum of squares of flat [n] as one fp64 number on its device, without waiting for it. It is NaN or
// infinite if an element is. On the CPU it is the exact sum, rounded.
at::Tensor sum_of_squares(const at::Tensor& flat);

// Returns the sums of squares of several such tensors on one device, fp64 [flats], without waiting for them.
at::Tensor sums_of_squares(std::span<const at::Tensor> flats);

// Returns the number of elements that are exactly zero.
int64_t count_zeros(const at::Tensor& flat);

// Multiplies flat by factor (writes nothing for 1) and returns whether every element was finite before.
bool scale_and_check_(const at::Tensor& flat, double factor);
// The same without waiting for the device: returns an int there, 0 if every element was finite.
at::Tensor scale_and_flag_(const at::Tensor& flat, double factor);

}  // namespace megalith::ops
