// The histories of the delayed fp8 recipe (nn/tensor_parallel/fp8_history.h) as tensors of a checkpoint: one per linear
// layer of a block, "layers.3.mlp.down.weight.fp8", equal on all ranks that hold the layer.
#pragma once

#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/model/virtual_models.h"

namespace megalith::model {

// Returns the states of the whole model, the same list on all ranks; empty if the model has none.
std::vector<hf::GlobalTensor> global_fp8_states(const VirtualModels& models);
// Returns the states of this rank, as views.
std::vector<parallel::ShardedTensor> fp8_states(const VirtualModels& models);
// Call after loading the states: from now on scales are taken from them instead of from each tensor.
void use_fp8_states(const VirtualModels& models);

}  // namespace megalith::model
