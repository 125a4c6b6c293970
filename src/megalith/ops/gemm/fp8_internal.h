// The CUDA kernels of fp8.h and fp8_blocks.h, over raw pointers, on a cudaStream_t.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "megalith/ops/gemm/fp8.h"

namespace megalith::ops {

// The largest number of a kind.
template <Fp8Kind kind>
inline constexpr float kFp8Reach = kind == Fp8Kind::kE4m3 ? 448 : 57344;

// *largest = max |x| (NaN does not count), of n elements; *largest is 0 before.
void largest_magnitude_cuda(c10::ScalarType dtype, const void* x, int64_t n, float* largest, void* stream);

// One scale for all of x [r, c], r and c multiples of 16.
struct Fp8Arrays {
  c10::ScalarType dtype = c10::ScalarType::Float;  // of x
  const void* x = nullptr;
  int64_t r = 0, c = 0;
  Fp8Kind kind = Fp8Kind::kE4m3;
  const float* largest = nullptr;  // the scale is made of it; nullptr: it is given
  float* scale = nullptr;          // in, or out where `largest` is given
  float* inverse_scale = nullptr;  // out
  float* seen = nullptr;           // becomes at least max |x|; nullptr: nobody asks
  void* rows = nullptr;            // bytes [r, c] out; nullptr: not wanted
  void* columns = nullptr;         // bytes [c, r] out; nullptr: not wanted
};
void cast_fp8_cuda(const Fp8Arrays& arrays, void* stream);

// A scale for each block of x [r, c], r and c multiples of 128. Either of rows and columns may be nullptr, its scales
// then too.
struct Fp8BlockArrays {
  c10::ScalarType dtype = c10::ScalarType::Float;  // of x
  const void* x = nullptr;
  int64_t r = 0, c = 0;
  Fp8Kind kind = Fp8Kind::kE4m3;
  bool strips = true;                      // blocks of 1 x 128 in either order; otherwise of 128 x 128
  void* rows = nullptr;                    // bytes [r, c] out
  void* columns = nullptr;                 // bytes [c, r] out
  float* inverse_scale = nullptr;          // out: [c/128][r] in memory, squares: [r/128][c/128]
  float* columns_inverse_scale = nullptr;  // out: [r/128][c] in memory, squares: [c/128][r/128]
};
void cast_fp8_blocks_cuda(const Fp8BlockArrays& arrays, void* stream);

}  // namespace megalith::ops
