// The histories of the delayed fp8 recipe (nn/tensor_parallel/fp8_history.h) as tensors of a checkpoint: one for each
// linear layer of a block, "layers.3.mlp.down.weight.fp8", the same on every rank that holds the layer.
#pragma once

#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/model/virtual_models.h"

namespace megalith::model {

// Of the whole model, the same list on all ranks. Empty: the model has none.
std::vector<hf::GlobalTensor> global_fp8_states(const VirtualModels& models);
// Those of this rank: views.
std::vector<parallel::ShardedTensor> fp8_states(const VirtualModels& models);
// They hold what some step has left: scales are taken from them from now on.
void use_fp8_states(const VirtualModels& models);

}  // namespace megalith::model
