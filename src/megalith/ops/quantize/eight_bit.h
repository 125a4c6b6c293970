// Weights in 8 bits, exactly as bitsandbytes defines them (Dettmers et al., LLM.int8(), arXiv:2208.07339).
//
// A row of the matrix, the weights of one output, has one scale, its largest magnitude, and each of its numbers is the
// code of the nearest of 255 multiples of a 127th of it:
//
//   codes    int8 [o, i]    number · ((1 / scale) · 127), to the nearest, ties to even
//   scales   fp32 [o]       largest magnitude of the row             number = code · scale · (1/127)
//
// That is 8 + 32/i bits per number. Numbers are rounded to fp16 before, as bitsandbytes does with every weight. Each
// operation above is rounded to fp32.
//
// Codes are those of bitsandbytes on the CPU, with one difference: in a row of zeros, where it divides by 0, codes
// are 0 by definition. Its CUDA kernel divides approximately (__fdividef), so a number in the middle between two
// codes may get the other one there. Numbers are those of its int8_vectorwise_dequant.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megalith/ops/quantize/matrix_rectangle.h"

namespace megalith::ops {

// How weights are quantized: there is one way.
struct EightBitFormat {
  bool operator==(const EightBitFormat&) const = default;
};

// A matrix [o, i] in 8 bits, or a rectangle of one: rows have the scales of the whole matrix, so a number is the same
// in every rectangle that holds it. Its tensors lie on one device.
struct EightBitTensor {
  at::Tensor codes;   // int8 [o, i], contiguous
  at::Tensor scales;  // fp32 [o]
};

// Quantizes x [o, i], fp32, bf16 or fp16, on its device.
EightBitTensor to_eight_bit(const at::Tensor& x);
// Returns the numbers in `dtype`, [o, i].
at::Tensor from_eight_bit(const EightBitTensor& tensor, at::ScalarType dtype);

// Copies a rectangle out of a whole matrix to `device`.
EightBitTensor cut_eight_bit(const EightBitTensor& whole, const MatrixRectangle& where, at::Device device);
// Writes the numbers from row `row` and column `column` on to `to` [rows, columns], contiguous fp32, bf16 or fp16 on
// the device of the matrix. Runs without autograd.
void read_eight_bit(const EightBitTensor& matrix, int64_t row, int64_t column, const at::Tensor& to);

}  // namespace megalith::ops
