// Grouped products in fp8: the linear layers of all experts of a rank, with one scale per row of both factors. A row's
// scale depends on that row alone, so a token gets the same bytes whichever rank its expert lives on, and however
// unevenly a router deals the tokens out.
//
//   const Fp8Rows x8 = to_fp8_rows(x), w8 = to_fp8_rows(w);           // x [r, i], w [g, o, i]
//   y = grouped_fp8_mm(x8, w8, counts, at::kBFloat16, /*fast=*/true);                        // ≈ x_n w_nᵀ, [r, o]
//   dx = grouped_fp8_mm(to_fp8_rows(dy), to_fp8_columns(w), counts, at::kBFloat16, false);   // ≈ dy_n w_n, [r, i]
//
// Everything is e4m3, gradients too: the kernels take nothing else, and a scale per row makes up for the smaller range.
// There is no weight gradient dy_nᵀ x_n: it sums over rows, whose scales differ and whose numbers per group are not
// multiples of 16. It stays in the dtype of the activations (grouped_gemm.h).
//
// Legend as in grouped_gemm.h: g groups, r rows, i and o columns.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/ops/gemm/grouped_gemm.h"

namespace megalith::ops {

// A matrix, or one per group, in e4m3. Row n is values[n] · inverse_scale[n].
struct Fp8Rows {
  at::Tensor values;         // e4m3 [r, c] or [g, r, c]
  at::Tensor inverse_scale;  // fp32 [r] or [g, r]
};

// Casts x [r, c] or [g, r, c] of bf16, fp16 or fp32; c is a multiple of 16. The largest magnitude of a row becomes 448,
// the largest number of e4m3; a row of zeros, or with numbers that are not finite, has the scale 1.
Fp8Rows to_fp8_rows(const at::Tensor& x);
// Casts the transpose of each matrix of w [g, o, i] -> [g, i, o], with a scale per column of w; o and i are multiples
// of 16.
Fp8Rows to_fp8_columns(const at::Tensor& w);

// Whether grouped_fp8_mm runs on a device: libtorch has the kernel for GPUs of compute capability 9 alone. Other kinds
// of devices emulate it.
bool has_grouped_fp8(at::Device device);

// Returns x_n w_nᵀ of every group n in `dtype`: x [r, c], w [g, o, c] -> [r, o]; o and c are multiples of 16. `fast`
// allows sums of less precision, for forward passes. On CUDA sums are rounded to bf16, and counts that only the device
// knows are not read.
at::Tensor grouped_fp8_mm(const Fp8Rows& x, const Fp8Rows& w, const GroupCounts& counts, at::ScalarType dtype,
                          bool fast);

}  // namespace megalith::ops
