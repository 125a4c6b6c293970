// Dropout that draws from a given generator, never from the global one of libtorch.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace megalith::ops {

// Draws the seed of one mask. The generator advances by one draw, whatever the size of the mask.
uint64_t draw_seed(at::Generator generator);

// Returns x with each element zeroed with probability p and the others divided by 1 - p. With p = 0 it returns x itself
// and draws nothing. Throws ConfigError unless 0 <= p < 1. Draws one seed per call, from which the mask follows.
at::Tensor dropout(const at::Tensor& x, double p, const at::Generator& generator);

// Returns residual + dropout(x), the end of a residual branch, in one pass over memory.
at::Tensor dropout_add(const at::Tensor& x, const at::Tensor& residual, double p, const at::Generator& generator);

}  // namespace megalith::ops
