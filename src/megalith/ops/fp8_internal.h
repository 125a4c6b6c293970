// The CUDA kernels of fp8.h, over raw pointers, on a cudaStream_t.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "megalith/ops/fp8.h"

namespace megalith::ops {

// *largest = max |x| (NaN does not count), of n elements; *largest is 0 before.
void largest_magnitude_cuda(c10::ScalarType dtype, const void* x, int64_t n, float* largest, void* stream);

// x [r, c] -> rows [r, c] and columns [c, r] of bytes, and the inverse scale. r and c are multiples of 16.
void cast_fp8_cuda(c10::ScalarType dtype, const void* x, int64_t r, int64_t c, Fp8Kind kind, const float* largest,
                   void* rows, void* columns, float* inverse_scale, void* stream);

}  // namespace megalith::ops
