// Matrix products in 8-bit floating point with one scale a tensor, found from the tensor itself (Megatron's fp8_recipe
// tensorwise). On CUDA kernels of our own cast, and cuBLASLt multiplies; elsewhere both are emulated: the same
// roundings, none of the speed.
//
// Legend: r rows, c columns.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith::ops {

// e4m3 has 3 bits of mantissa and reaches to 448, e5m2 has 2 and reaches to 57344.
enum class Fp8Kind { kE4m3, kE5m2 };

// Of a linear layer: e4m3 for everything, or e5m2, which reaches farther, for gradients.
enum class Fp8Format { kE4m3, kHybrid };

// A matrix in fp8, in both orders: products want the summed dimension dense in both factors.
struct Fp8Matrix {
  at::Tensor rows;           // [r, c]
  at::Tensor columns;        // [c, r]
  at::Tensor inverse_scale;  // fp32 [1]: value = fp8 · inverse_scale
};

// Whether a matrix [r, c] can take part: both sizes are multiples of 16.
bool fits_fp8(int64_t rows, int64_t columns);

// x [r, c] of bf16, fp16 or fp32, scaled so that its largest magnitude becomes the largest number of `kind`; rounded to
// nearest. No wait for the device.
Fp8Matrix to_fp8(const at::Tensor& x, Fp8Kind kind);

// a [m, k] · b [n, k]ᵀ -> [m, n] in `dtype`, from the rows of both. `fast`: sums of less precision, for forward passes.
at::Tensor fp8_mm(const at::Tensor& a, const at::Tensor& a_inverse_scale, const at::Tensor& b,
                  const at::Tensor& b_inverse_scale, at::ScalarType dtype, bool fast);
// The same into `out`, overwriting it; of its dtype.
void fp8_mm_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& a_inverse_scale, const at::Tensor& b,
                const at::Tensor& b_inverse_scale);

}  // namespace megalith::ops
