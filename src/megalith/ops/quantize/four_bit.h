// Weights in 4 bits, exactly as bitsandbytes defines them (Dettmers et al., QLoRA, arXiv:2305.14314).
//
// The numbers of a tensor, in the order of their rows, form blocks of 64. A block has one scale, its largest magnitude,
// and each of its numbers is the code of the nearest of 16 values times that scale:
//
//   codes    | n0 n1 | n2 n3 | …        two codes per byte, the first in the upper half
//   scales   | largest magnitude of n0 … n63 | of n64 … n127 | …
//
//   nf4      16 quantiles of a normal distribution                     number = value[code] · scale
//   fp4      sign, two bits of exponent, one of mantissa; over 12
//
// With double quantization, the scales less their mean are numbers of 8 bits in blocks of 256, each the code of the
// nearest of 256 values times the largest magnitude of its block:
//
//   scale = map[code] · nested[block / 256] + offset
//
// That is 4 + 8/64 + 32/(64·256) = 4.127 bits per number instead of 4.5.
//
// Codes are those of the CUDA kernels of bitsandbytes, with one difference: in a block of zeros, where these divide 0
// by 0, every number has the code of 0, as in its version for the CPU. The mean is summed in fp64 in the order of the
// blocks, so that it does not depend on devices and threads; bitsandbytes sums in fp32, which may move the last bit.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

#include "megalith/ops/quantize/matrix_rectangle.h"

namespace megalith::ops {

inline constexpr int64_t kFourBitBlock = 64;  // numbers per scale
inline constexpr int64_t kNestedBlock = 256;  // scales per nested scale

enum class FourBitKind { kNf4, kFp4 };

// How weights are quantized.
struct FourBitFormat {
  FourBitKind kind = FourBitKind::kNf4;
  bool double_quantization = true;
  bool operator==(const FourBitFormat&) const = default;
};

// Returns the bytes of one number, scales included: 0.516 for double quantization.
double four_bit_bytes(const FourBitFormat& format);
// Returns the 16 values by their codes.
std::array<float, 16> four_bit_values(FourBitKind kind);
// Returns the 256 values of double quantization in ascending order, fp32 [256]: the signed dynamic map of bitsandbytes.
at::Tensor nested_values();

// A whole tensor in 4 bits. Its tensors lie on one device.
struct FourBitTensor {
  std::array<float, 16> values{};  // by code
  int64_t block = kFourBitBlock;   // numbers per scale
  int64_t numel = 0;
  at::Tensor codes;     // uint8 [⌈numel / 2⌉]
  at::Tensor scales;    // fp32 [⌈numel / block⌉], or their codes, uint8, with double quantization
  at::Tensor nested{};  // fp32 [⌈scales / 256⌉]; undefined without double quantization, like `map`
  at::Tensor map{};     // fp32 [256]
  float offset = 0;     // the mean of the scales
};

// Quantizes x, fp32, bf16 or fp16 of any shape, on its device.
FourBitTensor to_four_bit(const at::Tensor& x, const FourBitFormat& format);
// Returns the numbers in `dtype`, [numel].
at::Tensor from_four_bit(const FourBitTensor& tensor, at::ScalarType dtype);

// A rectangle of a matrix [o, i] in 4 bits. Blocks are those of the whole matrix: a number is the same in every
// rectangle that holds it. A rectangle of whole rows has the scales of its blocks; where columns are cut, so are
// blocks, and each row has the scales of the blocks that it touches, `scales_per_row` of them.
struct FourBitMatrix {
  MatrixRectangle where;
  int64_t scales_per_row = 0;  // 0: scales are those of the blocks from that of the first number on
  FourBitTensor numbers;       // codes of the rectangle alone, row by row; `nested` of the whole matrix
};

// Copies a rectangle out of a whole matrix to `device`. An empty rectangle has no tensors.
FourBitMatrix cut_four_bit(const FourBitTensor& whole, const MatrixRectangle& where, at::Device device);
// Writes the numbers from row `row` and column `column` of the rectangle on to `to` [rows, columns], contiguous fp32,
// bf16 or fp16 on the device of the matrix. Runs without autograd.
void read_four_bit(const FourBitMatrix& matrix, int64_t row, int64_t column, const at::Tensor& to);

}  // namespace megalith::ops
