// The seed that a CUDA kernel gets from its generator.
#pragma once

#include <ATen/core/Generator.h>

#include "megalith/ops/kernel/drawn_seed_internal.h"

namespace megalith::ops {

// Does what draw_seed() does for a CUDA generator, also while a graph is being recorded, when the seed is not known.
DrawnSeed draw_seed_cuda(const at::Generator& generator);

}  // namespace megalith::ops
