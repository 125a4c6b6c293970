// Fresh weights that do not depend on the layout: every element is a function of (seed, tensor name, its index in the
// global tensor), so each rank draws its own rectangle and any two layouts hold the same model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "megalith/nn/parameter/parameter.h"

namespace megalith::nn {

// Fills `out` (any floating dtype) with N(mean, std²) numbers of the rectangle at `offset` of the tensor `name` with
// `global_shape`. Philox-4x32-10 and Box-Muller; numbers may not change between versions: runs are repeated by seed.
void fill_normal(const at::Tensor& out, uint64_t seed, std::string_view name, at::IntArrayRef global_shape,
                 at::IntArrayRef offset, double mean, double std);

// The same with numbers that are uniform in [-bound, bound).
void fill_uniform(const at::Tensor& out, uint64_t seed, std::string_view name, at::IntArrayRef global_shape,
                  at::IntArrayRef offset, double bound);

// Gives a parameter, or every one of a set, its fresh value; padding becomes 0.
void initialize(const Parameter& parameter, uint64_t seed);
void initialize(const ParameterSet& set, uint64_t seed);

}  // namespace megalith::nn
