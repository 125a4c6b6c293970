// CUDA kernels of fp8.h, fp8_blocks.h and grouped_fp8.h over raw pointers; `stream` is a cudaStream_t.
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

// Matrices x [g, r, c] to cast with one scale per row, or per column; c is a multiple of 16.
struct Fp8RowArrays {
  c10::ScalarType dtype = c10::ScalarType::Float;  // type of x: fp32, bf16 or fp16
  const void* x = nullptr;                         // aligned to 16 bytes
  int64_t g = 0, r = 0, c = 0;
};
// Casts to e4m3: values [g, r, c], aligned to 16 bytes, and inverse_scale [g, r].
void cast_fp8_rows_cuda(const Fp8RowArrays& from, void* values, float* inverse_scale, void* stream);
// Casts the transposes: values [g, c, r] and inverse_scale [g, c]; r is a multiple of 16 too.
void cast_fp8_columns_cuda(const Fp8RowArrays& from, void* values, float* inverse_scale, void* stream);
// Returns the first number of the compute capability of a device; of the current one for -1.
int compute_capability_major_cuda(int device);

}  // namespace megalith::ops
