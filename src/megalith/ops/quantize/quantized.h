// Weights in fewer bits, in either of the forms of bitsandbytes: 4 bits with a scale per 64 numbers (four_bit.h), or
// 8 bits with a scale per row (eight_bit.h). The code that keeps, loads and multiplies weights is that of both.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <variant>
#include <vector>

#include "megalith/ops/quantize/eight_bit.h"
#include "megalith/ops/quantize/four_bit.h"

namespace megalith::ops {

// How a weight is quantized.
using QuantizedFormat = std::variant<FourBitFormat, EightBitFormat>;
// A whole matrix, and a rectangle of one with the scales of the whole.
using QuantizedTensor = std::variant<FourBitTensor, EightBitTensor>;
using QuantizedMatrix = std::variant<FourBitMatrix, EightBitTensor>;

// Return the bits of a code.
int bits_of(const QuantizedFormat& format);
int bits_of(const QuantizedTensor& tensor);
// Returns the bytes of a weight of `rows` rows, scales included, as if its blocks were whole.
double quantized_bytes(const QuantizedFormat& format, int64_t numel, int64_t rows);

// Quantizes x [o, i], fp32, bf16 or fp16, on its device.
QuantizedTensor to_quantized(const at::Tensor& x, const QuantizedFormat& format);
// Returns the numbers in `dtype`, row by row: [o · i].
at::Tensor from_quantized(const QuantizedTensor& tensor, at::ScalarType dtype);

// Copies a rectangle out of a whole matrix to `device`.
QuantizedMatrix cut_quantized(const QuantizedTensor& whole, const MatrixRectangle& where, at::Device device);
// Writes the numbers from row `row` and column `column` of the rectangle on to `to` [rows, columns], contiguous fp32,
// bf16 or fp16 on the device of the matrix. Runs without autograd.
void read_quantized(const QuantizedMatrix& matrix, int64_t row, int64_t column, const at::Tensor& to);

// Returns the tensors of codes and scales that a rectangle consists of.
std::vector<at::Tensor> tensors_of(const QuantizedMatrix& matrix);

}  // namespace megalith::ops
