// The end of a residual branch: what the last matrix product left out.
#pragma once

#include <ATen/core/Tensor.h>

namespace megalith::ops {

// y += bias + residual in one pass over y: y, residual [t, h], contiguous and of one dtype; bias [h] of any. Without
// autograd: for use inside of functions with a backward of their own.
void add_bias_residual_(const at::Tensor& y, const at::Tensor& bias, const at::Tensor& residual);

}  // namespace megalith::ops
