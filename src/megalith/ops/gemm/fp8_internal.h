// CUDA kernels of fp8.h and fp8_blocks.h over raw pointers; `stream` is a cudaStream_t.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

#include "megalith/ops/gemm/fp8.h"

namespace megalith::ops {

// The largest number of a kind. Larger ones saturate: e4m3 has no infinity, and one in e5m2 would spoil a product.
template <Fp8Kind kind>
inline constexpr float kFp8Reach = kind == Fp8Kind::kE4m3 ? 448 : 57344;

// Raises *largest, which must be 0, to max |x| over n elements; ignores NaN.
void largest_magnitude_cuda(c10::ScalarType dtype, const void* x, int64_t n, float* largest, void* stream);

// A cast of x [r, c] with one scale; r and c are multiples of 16.
struct Fp8Arrays {
  c10::ScalarType dtype = c10::ScalarType::Float;  // type of x: fp32, bf16 or fp16
  const void* x = nullptr;
  int64_t r = 0, c = 0;
  Fp8Kind kind = Fp8Kind::kE4m3;
  const float* largest = nullptr;  // max |x|, from which the scale is computed; nullptr if the scale is given
  float* scale = nullptr;          // in; out if `largest` is given
  float* inverse_scale = nullptr;  // out
  float* seen = nullptr;           // raised to at least max |x|; may be nullptr
  void* rows = nullptr;            // bytes [r, c] out; may be nullptr
  void* columns = nullptr;         // bytes [c, r] out; may be nullptr
};
// Reads x once; writes each order once, and the scales, without the host. x is aligned to 16 bytes.
void cast_fp8_cuda(const Fp8Arrays& arrays, void* stream);

// A cast of x [r, c] with one scale per block; r and c are multiples of 128. Rows or columns may be nullptr, together
// with their scales.
struct Fp8BlockArrays {
  c10::ScalarType dtype = c10::ScalarType::Float;  // type of x: fp32, bf16 or fp16
  const void* x = nullptr;
  int64_t r = 0, c = 0;
  Fp8Kind kind = Fp8Kind::kE4m3;
  bool strips = true;                      // blocks of 1 x 128 in either order; otherwise of 128 x 128
  void* rows = nullptr;                    // bytes [r, c] out
  void* columns = nullptr;                 // bytes [c, r] out
  float* inverse_scale = nullptr;          // out: [c/128][r] in memory; for squares [r/128][c/128]
  float* columns_inverse_scale = nullptr;  // out: [r/128][c] in memory; for squares [c/128][r/128]
};
// Reads x once. x is aligned to 16 bytes.
void cast_fp8_blocks_cuda(const Fp8BlockArrays& arrays, void* stream);

}  // namespace megalith::ops
