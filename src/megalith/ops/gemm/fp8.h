// Matrix products in 8-bit floating point. On CUDA kernels of our own cast, and cuBLASLt multiplies; elsewhere both are
// emulated: the same roundings, none of the speed.
//
// Legend: r rows, c columns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith::ops {

// e4m3 has 3 bits of mantissa and reaches to 448, e5m2 has 2 and reaches to 57344.
enum class Fp8Kind { kE4m3, kE5m2 };
at::ScalarType dtype_of(Fp8Kind kind);
double reach_of(Fp8Kind kind);

// Of a linear layer: e4m3 for everything, or e5m2, which reaches farther, for gradients.
enum class Fp8Format { kE4m3, kHybrid };

// Where scales come from: Megatron's fp8_recipe.
enum class Fp8Scaling {
  kTensor,   // tensorwise: one a tensor, from the tensor itself
  kDelayed,  // one a tensor, from its largest magnitudes in the steps before
  kBlocks    // blockwise: one for 1 x 128 numbers of activations and gradients, one for 128 x 128 of weights
};

struct Fp8Recipe {
  Fp8Format format = Fp8Format::kHybrid;
  Fp8Scaling scaling = Fp8Scaling::kTensor;
  int64_t history = 1;      // kDelayed: steps that it looks back
  bool most_recent = true;  // kDelayed: takes the last of them; otherwise their largest
  int margin = 0;           // kDelayed: scales are divided by 2^margin
  bool operator==(const Fp8Recipe&) const = default;

  Fp8Kind gradients() const { return format == Fp8Format::kHybrid ? Fp8Kind::kE5m2 : Fp8Kind::kE4m3; }
};

// A matrix in fp8, in both orders: products want the summed dimension dense in both factors. Values are
// fp8 · inverse scale. One scale a tensor: [1], the same for both orders. Blocks: as fp8_blocks.h says.
struct Fp8Matrix {
  at::Tensor rows = {};                   // [r, c]; undefined: not wanted
  at::Tensor columns = {};                // [c, r]; undefined: not wanted
  at::Tensor inverse_scale = {};          // fp32, of `rows`
  at::Tensor columns_inverse_scale = {};  // fp32, of `columns`
  at::Tensor scale = {};                  // fp32 [1]: what the values were multiplied with; blocks: undefined
};

// Whether a matrix [r, c] can take part with one scale: both sizes are multiples of 16.
bool fits_fp8(int64_t rows, int64_t columns);

struct Fp8Cast {
  Fp8Kind kind = Fp8Kind::kE4m3;
  bool rows = true, columns = true;  // which orders are wanted
  at::Tensor scale = {};             // fp32 [1]; undefined: the largest magnitude becomes the largest number of `kind`
  at::Tensor seen = {};              // fp32 [1]: becomes the largest magnitude where that is larger; undefined: nobody
                                     // asks
};
// x [r, c] of bf16, fp16 or fp32, scaled, rounded to nearest, and what is beyond the largest number made that. No wait
// for the device; one pass over x with a given scale, two without.
Fp8Matrix to_fp8(const at::Tensor& x, const Fp8Cast& cast);

// a [m, k] · b [n, k]ᵀ -> [m, n] in `dtype`; with the inverse scales of both as Fp8Matrix has them for those rows.
// `fast`: sums of less precision, for forward passes (one scale a tensor).
at::Tensor fp8_mm(const at::Tensor& a, const at::Tensor& a_inverse_scale, const at::Tensor& b,
                  const at::Tensor& b_inverse_scale, at::ScalarType dtype, bool fast);
// The same into `out`, overwriting it; of its dtype.
void fp8_mm_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& a_inverse_scale, const at::Tensor& b,
                const at::Tensor& b_inverse_scale);

}  // namespace megalith::ops
