// Products of blocks of rows that lie apart from each other in larger matrices.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/ops/gemm/gemm.h"

namespace megalith::ops {

// Computes out[r] = a[r] · b for every block r: a [r, m, k], b [k, n], out [r, m, n]. Blocks are views of larger
// matrices: elements of a row are contiguous, rows and blocks may have any distance. Without autograd.
//
//   blocks of every matrix lie one after the other    one product of r m rows, by gemm_out
//   apart, on CUDA                                    one batched product, which reads b once for all blocks; of the
//                                                     kernels that cuBLASLt offers for it, the fastest (gemm.h)
//   apart, on the CPU                                 one product per block
void block_gemm_out(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const GemmKernels& kernels = {});

}  // namespace megalith::ops
