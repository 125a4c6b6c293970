// Dropout that draws from a given generator, never from libtorch's global one.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace megalith::ops {

// x with each element zeroed with probability p and the others divided by 1 - p. p 0: x itself, and nothing is drawn.
at::Tensor dropout(const at::Tensor& x, double p, const at::Generator& generator);

// residual + dropout(x): the end of a residual branch, one pass over memory.
at::Tensor dropout_add(const at::Tensor& x, const at::Tensor& residual, double p, const at::Generator& generator);

}  // namespace megalith::ops
