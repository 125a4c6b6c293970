// Weights in 8 bits with a scale per block, as in the files of DeepSeek-V3:
//
//   X.weight            F8_E4M3 [out, in]
//   X.weight_scale_inv  F32     [⌈out/128⌉, ⌈in/128⌉]: what the elements of each block are multiplied by
//
// Blocks lie in the last two dimensions; those at the ends may be smaller. Stacks of matrices have stacks of scales.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "megalith/hf/scale_block.h"

namespace megalith::hf {

// Returns the shape of the scales of a weight, which has two dimensions or more.
std::vector<int64_t> block_scale_shape(at::IntArrayRef weight, const ScaleBlock& block);

// Returns the values of a rectangle of a weight, fp32. The rectangle begins at `offset` in the weight that `scales`
// belong to; it may cut blocks.
at::Tensor dequantized(const at::Tensor& rectangle, const at::Tensor& scales, at::IntArrayRef offset,
                       const ScaleBlock& block);
// Copies these values into a tensor of any floating-point type, a few megabytes at a time.
void copy_dequantized(const at::Tensor& into, const at::Tensor& rectangle, const at::Tensor& scales,
                      at::IntArrayRef offset, const ScaleBlock& block);

// A weight and its scales as such files keep them.
struct BlockQuantized {
  at::Tensor weight;  // Float8_e4m3fn
  at::Tensor scales;  // fp32
};
// Rounds a weight to 8 bits. The largest magnitude of a block becomes 448, the largest of the format; a block of zeros
// has the scale 1. Values that were dequantized from blocks of the same size come back bit for bit where the scales are
// powers of two.
BlockQuantized block_quantized(const at::Tensor& weight, const ScaleBlock& block);

}  // namespace megalith::hf
