// Matrices in fp8 with a scale for each block of numbers: 1 x 128 for activations and gradients, 128 x 128 for weights
// (Megatron's fp8_recipe blockwise; DeepSeek-V3, Liu et al. 2024, section 3.3). Scales are powers of two, as
// Transformer Engine's.
//
// Legend: r rows, c columns.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/ops/gemm/fp8.h"

namespace megalith::ops {

inline constexpr int64_t kFp8Block = 128;

enum class Fp8Blocks {
  kStrips,  // of 128 numbers of a row, for either order of its own: inverse scales [r, c/128] and [c, r/128], each with
            // its columns dense
  kSquares  // [r/128, c/128], and the same transposed
};

// Whether x [t, i] · weight [o, i]ᵀ, and both products of its backward, can be multiplied so: multiples of 128 tokens,
// of 512 for the others, since cuBLASLt reads the scales of squares in fours.
bool fits_fp8_blocks(int64_t tokens, int64_t in, int64_t out);

// x [r, c] of bf16, fp16 or fp32, r and c multiples of 128; one pass. The largest magnitude of a block becomes at most
// the largest number of `kind`, at least half of it.
Fp8Matrix to_fp8_blocks(const at::Tensor& x, Fp8Kind kind, Fp8Blocks blocks, bool rows = true, bool columns = true);

}  // namespace megalith::ops
