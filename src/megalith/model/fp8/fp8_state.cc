// The delayed fp8 recipe keeps a history of maxima per linear layer, which training needs again when it is resumed.
// Each history is a tensor of the checkpoint under the name of its weight with ".fp8" appended. Ranks of a
// tensor-parallel group hold equal histories, since maxima are reduced over it; tp_rank is the replica, so that rank 0
// writes.
#include "megalith/model/fp8/fp8_state.h"

#include "megalith/nn/tensor_parallel/fp8_history.h"

namespace megalith::model {

namespace {

std::string state_name(const nn::Parameter& parameter) { return parameter.spec.name + ".fp8"; }

}  // namespace

std::vector<hf::GlobalTensor> global_fp8_states(const VirtualModels& models) {
  ModelOptions options;
  options.device = at::kMeta;
  options.fp8 = models[0].options().fp8;
  options.fp8_inside_only = models[0].options().fp8_inside_only;
  if (!options.fp8 || options.fp8->scaling != ops::Fp8Scaling::kDelayed) return {};
  // Builds the model for one rank on the meta device: the layers themselves know which of them have a history.
  const auto worlds = comm::World::in_process(1);
  parallel::ParallelContext alone(*worlds[0], layout::RankGrid(layout::GridShape{}));
  const GptModel whole(models.config(), options, ChunkPlace::whole(models.config()), alone);
  std::vector<hf::GlobalTensor> tensors;
  for (const auto& parameter : whole.parameters().all())
    if (parameter->attached.fp8)
      tensors.push_back({state_name(*parameter), parameter->attached.fp8->state.sizes().vec()});
  return tensors;
}

// Histories are small and never split: every rank holds the whole tensor at offset {0, 0}.
std::vector<parallel::ShardedTensor> fp8_states(const VirtualModels& models) {
  std::vector<parallel::ShardedTensor> held;
  for (const nn::Parameter* parameter : models.parameters()) {
    if (!parameter->attached.fp8) continue;
    const at::Tensor& state = parameter->attached.fp8->state;
    held.push_back({state_name(*parameter), state.sizes().vec(), {0, 0}, state, models.context().place().tp_rank});
  }
  return held;
}

// `fresh` makes the next pass compute scales from the tensors themselves, because there is no history yet.
void use_fp8_states(const VirtualModels& models) {
  for (const nn::Parameter* parameter : models.parameters())
    if (parameter->attached.fp8) parameter->attached.fp8->fresh = false;
}

}  // namespace megalith::model
