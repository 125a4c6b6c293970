// Parts of gemm.h: the products that go to cuBLASLt, and the kernels that add a bias and a residual.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>

#include "megalith/ops/gemm/gemm.h"

namespace megalith::ops {

// Smallest m·n·k for which measuring kernels is worth it: about 25 us on an H200 (docs/gpu.md). Smaller products are
// bound by their launch, not by the choice of the kernel.
inline constexpr int64_t kLeastTried = int64_t{1} << 33;

// Shapes that have a plan at the same time; beyond that the oldest half is forgotten. A model has about twenty shapes
// for each number of tokens, and a plan takes about 2 KiB.
inline constexpr size_t kMostPlans = 1024;

// Makes plans that use cuBLASLt; only in builds with it. They also take the blocks of block_gemm.h, a [r, m, k] and out
// [r, m, n], without addends.
std::unique_ptr<GemmPlans> make_cublaslt_plans();

// y += bias + residual: y and residual [t, h], bias acc [h] (fp64 for fp64, otherwise fp32).
void add_bias_residual_cpu(c10::ScalarType dtype, void* y, const void* bias, const void* residual, int64_t t,
                           int64_t h);

// CUDA twin (fp32, bf16, fp16) on `stream`, a cudaStream_t. With `raw_bias` the bias is given in dtype, not in acc.
void add_bias_residual_cuda(c10::ScalarType dtype, void* y, const void* bias, bool raw_bias, const void* residual,
                            int64_t t, int64_t h, void* stream);

}  // namespace megalith::ops
