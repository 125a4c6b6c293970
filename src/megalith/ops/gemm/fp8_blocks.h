// Matrices in fp8 with one scale per block of numbers: 1 x 128 for activations and gradients, 128 x 128 for weights
// (Megatron's fp8_recipe blockwise; DeepSeek-V3, Liu et al. 2024, section 3.3). Scales are powers of two, as in
// Transformer Engine.
//
// Legend: r rows, c columns.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/ops/gemm/fp8.h"

namespace megalith::ops {

inline constexpr int64_t kFp8Block = 128;  // side of a square, length of a strip

// The shape of blocks.
enum class Fp8Blocks {
  kStrips,  // 128 numbers of a row, in each order separately: inverse scales are [r, c/128] and [c, r/128], each with
            // contiguous columns
  kSquares  // 128 x 128: inverse scales are [r/128, c/128], and the transpose of it
};

// Returns the scale of a block whose largest magnitude is `largest`, elementwise: the largest power of two that keeps
// it within the reach of `kind`; 1 for blocks of zeros or with numbers that are not finite.
at::Tensor fp8_block_scale(const at::Tensor& largest, Fp8Kind kind);

// Casts x [r, c] of bf16, fp16 or fp32 in one pass; r and c are multiples of 128. The largest magnitude of a block
// lands between half of the largest number of `kind` and that number. `rows` and `columns` select the orders to
// compute.
Fp8Matrix to_fp8_blocks(const at::Tensor& x, Fp8Kind kind, Fp8Blocks blocks, bool rows = true, bool columns = true);

}  // namespace megalith::ops
