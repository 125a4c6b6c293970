// Fresh weights that do not depend on the layout: every element is a function of (seed, tensor name, its index in the
// global tensor), so each rank draws its own rectangle and any two layouts hold the same model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "megalith/nn/parameter/parameter.h"

namespace megalith::nn {

// Fills `out` (any floating dtype), the rectangle at `offset` of the tensor `name` with `global_shape`, with samples of
// N(mean, std²). Uses Philox-4x32-10 and Box-Muller. The samples must not change between versions: runs are reproduced
// by their seed.
void fill_normal(const at::Tensor& out, uint64_t seed, std::string_view name, at::IntArrayRef global_shape,
                 at::IntArrayRef offset, double mean, double std);

// The same with samples that are uniform in [-bound, bound).
void fill_uniform(const at::Tensor& out, uint64_t seed, std::string_view name, at::IntArrayRef global_shape,
                  at::IntArrayRef offset, double bound);

// Fill a parameter, or all parameters of a set, with initial values as its spec says; padding becomes 0.
void initialize(const Parameter& parameter, uint64_t seed);
void initialize(const ParameterSet& set, uint64_t seed);

}  // namespace megalith::nn
