// The part of product.h that goes to cuBLASLt.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megalith/ops/gemm/product.h"

namespace megalith::ops {

inline constexpr int64_t kLeastTried = int64_t{1} << 33;  // m·n·k below which a choice is not worth its trials

// out = beta · out + alpha · (a · b) + bias + residual; residual only with beta 0. False: it is none of cuBLASLt's, or
// too small to be worth it, and nothing was done.
bool product_by_cublaslt(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, const Addends& added,
                         double beta, double alpha, KernelChoice choice);

}  // namespace megalith::ops
