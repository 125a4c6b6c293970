// Our tensors in the models of Megatron-Core: the same weights under other names, some of them put together.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/model/families/model_config.h"
#include "megalith/model/foreign/megatron_model.h"

namespace megalith::model {

// The tensor of Megatron-Core that holds one of ours.
struct MegatronSource {
  std::string name;
  // As for MegatronModel::problem.
  std::vector<int64_t> shape;
  int64_t parts = 1;
  std::function<at::Tensor(const at::Tensor&)> take;  // ours, out of the whole tensor
};

// Returns where one of our tensors lies. Of several names that versions of Megatron-Core have for it, the one that
// `model` holds. The name is the first of them where it holds none. Throws ConfigError for parts of models that
// Megatron-Core keeps in forms which are not read: gated delta nets, attention with an output gate, towers.
MegatronSource megatron_source(const MegatronModel& model, const ModelConfig& config, const hf::GlobalTensor& ours);

}  // namespace megalith::model
