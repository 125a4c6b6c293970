// What a chunk of the model holds in one micro-batch: embedding, layers with their recomputation, head and loss
// (model/gpt_model.cc, ops/loss/cross_entropy.cc, nn/tensor_parallel/linear_cross_entropy.cc).
#pragma once

#include "megalith/layout/layer_split.h"
#include "megalith/plan/layer_walk_internal.h"

namespace megalith::plan {

struct ChunkFootprints {
  // The input of a chunk that is not the first is there before, and stays until the end of backward. Leaves what is
  // kept, and the output of a chunk that is not the last.
  Footprint forward;
  // The gradient of that output is there before, and stays. Leaves that of the input, where there is one; everything
  // that was kept is gone, the input too.
  Footprint backward;
  // kZeroBubble: the rest of it.
  Footprint weight_gradient;
};

ChunkFootprints chunk_footprints(const RunShape& run, const LayerSizes& sizes, const layout::Stage& stage);

}  // namespace megalith::plan
