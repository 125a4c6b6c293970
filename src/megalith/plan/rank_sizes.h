// Converts a run into the sizes that the footprints of its model need (model/footprint/model_footprint.h).
#pragma once

#include "megalith/nn/footprint/rank_sizes.h"
#include "megalith/plan/run_shape.h"

namespace megalith::plan {

// Sizes of one micro-batch on one rank; the same on all ranks. Returns tokens, widths and group sizes as footprints
// take them. `run` must be complete.
nn::RankSizes rank_sizes(const RunShape& run);

}  // namespace megalith::plan
