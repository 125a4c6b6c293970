// Norms of weights with low-rank updates, by which weight-decomposed adaptation (DoRA) divides their rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "megalith/nn/parameter/low_rank.h"
#include "megalith/nn/parameter/parameter.h"

namespace megalith::nn {

// Returns the number of rows of a weight with so many columns whose norms are computed at once: their sum with the
// update takes memory in fp32.
int64_t norm_rows_at_once(int64_t columns);

// Returns the norms of the rows of W + s·B·A that `update` covers, fp32 [Σ rows] in the order of B, without autograd.
// Collective over update.inputs_over. Not for grouped weights.
at::Tensor updated_norms(const Parameter& weight, const LowRank& update);

}  // namespace megalith::nn
