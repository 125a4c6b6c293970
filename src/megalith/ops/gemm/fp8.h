// Matrix products in 8-bit floating point. On CUDA our own kernels cast and cuBLASLt multiplies; elsewhere both are
// emulated, with the same roundings but without the speed.
//
// Legend: r rows, c columns.
//
//   const Fp8Matrix a = to_fp8(x, {.columns = false}), b = to_fp8(w, {.columns = false});
//   y = fp8_mm(a.rows, a.inverse_scale, b.rows, b.inverse_scale, at::kBFloat16, true);      // ≈ x wᵀ
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megalith/ops/gemm/gemm.h"

namespace megalith::ops {

// e4m3 has 3 bits of mantissa and a largest number of 448; e5m2 has 2 bits and 57344.
enum class Fp8Kind { kE4m3, kE5m2 };
at::ScalarType dtype_of(Fp8Kind kind);  // libtorch's name of the type
// Returns the largest number of a kind.
double reach_of(Fp8Kind kind);

// The types in a linear layer.
enum class Fp8Format {
  kE4m3,   // e4m3 for everything
  kHybrid  // e5m2, which has the larger range, for gradients; e4m3 for the rest
};

// How scales are computed: Megatron's fp8_recipe.
enum class Fp8Scaling {
  kTensor,   // tensorwise: one per tensor, from the tensor itself
  kDelayed,  // one per tensor, from its largest magnitudes in earlier steps
  kBlocks    // blockwise: one per 1 x 128 numbers of activations and gradients, one per 128 x 128 of weights
};

// How a linear layer uses fp8.
struct Fp8Recipe {
  Fp8Format format = Fp8Format::kHybrid;
  Fp8Scaling scaling = Fp8Scaling::kTensor;
  int64_t history = 1;           // kDelayed: number of earlier steps to consider
  bool most_recent = true;       // kDelayed: uses the last of them, otherwise the largest
  int margin = 0;                // kDelayed: scales are divided by 2^margin
  bool weight_gradients = true;  // false: weight gradients are computed in the dtype of the activations
  bool operator==(const Fp8Recipe&) const = default;

  // Returns the type of output gradients; inputs and weights are always e4m3.
  Fp8Kind gradients() const { return format == Fp8Format::kHybrid ? Fp8Kind::kE5m2 : Fp8Kind::kE4m3; }
};

// A matrix in fp8, in both orders, since products want the summed dimension contiguous in both factors. Values are
// fp8 · inverse scale. With one scale per tensor, the inverse scale is [1] and the same for both orders; for blocks see
// fp8_blocks.h.
struct Fp8Matrix {
  at::Tensor rows = {};                   // [r, c]; undefined unless requested
  at::Tensor columns = {};                // [c, r]; undefined unless requested
  at::Tensor inverse_scale = {};          // fp32, belongs to `rows`
  at::Tensor columns_inverse_scale = {};  // fp32, belongs to `columns`
  at::Tensor scale = {};                  // fp32 [1], the factor of the values; undefined for blocks
};

// Whether a matrix [r, c] can be multiplied with one scale per tensor: both sizes are multiples of 16.
bool fits_fp8(int64_t rows, int64_t columns);
// Returns the number of which the widths of a weight must be multiples (16; with blocks 512, since cuBLASLt reads the
// scales of squares in fours), and the one to which the tokens of a product are padded (16; with blocks 128).
int64_t fp8_width_multiple(Fp8Scaling scaling);
int64_t fp8_token_multiple(Fp8Scaling scaling);

// Options of a cast.
struct Fp8Cast {
  Fp8Kind kind = Fp8Kind::kE4m3;
  bool rows = true, columns = true;  // the orders to compute
  at::Tensor scale = {};  // fp32 [1]; if undefined, maps the largest magnitude to the largest number of `kind`
  at::Tensor seen = {};   // fp32 [1], raised to the largest magnitude of x; may be undefined
};
// Casts x [r, c] of bf16, fp16 or fp32: scales, rounds to nearest, and saturates at the largest number. Does not wait
// for the device; takes one pass over x with a given scale, two without.
Fp8Matrix to_fp8(const at::Tensor& x, const Fp8Cast& cast);

// Returns the scale that to_fp8 finds for a tensor whose largest magnitude is `largest`, elementwise: 1 for zero and
// for numbers that are not finite.
at::Tensor fp8_scale(const at::Tensor& largest, Fp8Kind kind);
// Returns the numbers of Fp8Matrix::rows in fp32.
at::Tensor from_fp8(const at::Tensor& rows, const at::Tensor& inverse_scale);

// Returns a [m, k] · b [n, k]ᵀ, [m, n] in `dtype`. The inverse scales are those of Fp8Matrix for the order in use.
// `fast` allows sums of less precision, for forward passes (with one scale per tensor only). With plans in `kernels`
// the kernel is chosen by measuring, as in gemm.h.
at::Tensor fp8_mm(const at::Tensor& a, const at::Tensor& a_inverse_scale, const at::Tensor& b,
                  const at::Tensor& b_inverse_scale, at::ScalarType dtype, bool fast, const GemmKernels& kernels = {});
// Computes into = beta · into + the same product, in the dtype of `into`. With beta = 0 `into` is not read.
void add_fp8_mm(const at::Tensor& into, const at::Tensor& a, const at::Tensor& a_inverse_scale, const at::Tensor& b,
                const at::Tensor& b_inverse_scale, double beta, const GemmKernels& kernels = {});

}  // namespace megalith::ops
