// Kernels of four_bit.h over raw pointers.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace megalith::ops {

struct FourBitMatrix;  // four_bit.h

// Code of a number between -1 and 1: how many of 15 limits are less than it, and which code that is. For fp4 the limits
// are those of the magnitude (7 of them), and a negative number has the bit 8.
inline constexpr float kNf4Limits[15] = {
    -0.8480964004993439F,  -0.6106329262256622F,   -0.4599952697753906F, -0.33967943489551544F, -0.23460740596055984F,
    -0.13791173323988914F, -0.045525018125772476F, 0.03979014977812767F, 0.1202552504837513F,   0.2035212516784668F,
    0.2920137718319893F,   0.3893125355243683F,    0.5016634166240692F,  0.6427869200706482F,   0.8614784181118011F};
inline constexpr float kFp4Limits[7] = {0.00260417F, 0.0859375F, 0.20833333F, 0.29166667F,
                                        0.4166667F,  0.583333F,  0.8333333F};
inline constexpr uint8_t kFp4Codes[8] = {0, 1, 6, 7, 4, 5, 2, 3};  // by ascending magnitude
// The least number that a block is divided by: a block of zeros then has codes of 0.
inline constexpr float kSmallestDivisor = 1e-38F;

// A FourBitMatrix. Number (i, j) of the rectangle is number (first_row + i) · whole_columns + first_column + j of the
// matrix.
struct FourBitArrays {
  float values[16];
  const uint8_t* codes;
  const float* scales;         // nullptr with double quantization
  const uint8_t* scale_codes;  // nullptr without it, like the next two
  const float* nested;
  const float* map;
  float offset;
  int64_t block;
  int64_t columns;  // that the rectangle has
  int64_t first_row, first_column, whole_columns;
  int64_t scales_per_row;
};

// Returns the addresses in a matrix, which outlives them.
FourBitArrays arrays_of(const FourBitMatrix& matrix);

// The part of the rectangle that is read.
struct FourBitSlice {
  int64_t row, column, rows, columns;
};

// x [n] -> codes [⌈n/2⌉], scales [⌈n/block⌉].
void quantize_four_bit_cpu(c10::ScalarType dtype, const void* x, int64_t n, bool nf4, int64_t block, uint8_t* codes,
                           float* scales);
// -> to [rows, columns].
void read_four_bit_cpu(const FourBitArrays& from, const FourBitSlice& slice, c10::ScalarType dtype, void* to);

// The same on CUDA; `stream` is a cudaStream_t. Blocks are of 64 numbers when quantizing.
void quantize_four_bit_cuda(c10::ScalarType dtype, const void* x, int64_t n, bool nf4, uint8_t* codes, float* scales,
                            void* stream);
void read_four_bit_cuda(const FourBitArrays& from, const FourBitSlice& slice, c10::ScalarType dtype, void* to,
                        void* stream);

}  // namespace megalith::ops
