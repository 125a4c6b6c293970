// The chunks of one rank. With virtual pipeline stages a rank holds several, which are not adjacent: of 8 layers on 2
// stages with 2 chunks each, rank 0 holds layers 0-1 and 4-5, rank 1 layers 2-3 and 6-7.
#include "megalith/model/virtual_models.h"

#include "megalith/base/error.h"
#include "megalith/model/vision_part.h"

namespace megalith::model {

layout::LayerSplit layer_split(layout::SplitRequest stages, const ModelConfig& config, int pp) {
  stages.num_layers = static_cast<int>(config.num_layers);
  stages.mtp_layers = static_cast<int>(config.mtp_layers);
  stages.pp = pp;
  stages.uneven = layout::UnevenSplit::kBalance;  // layers that do not divide evenly are balanced, not refused
  layout::LayerSplit split(stages);
  for (const layout::Stage& stage : split.stages())  // all stages, so that every rank throws
    check<ConfigError>(
        stage.mtp_layers.empty() || stage.has_loss(),
        "pipeline_model_parallel_layout {}: the multi-token-prediction layers (m) share the head and must"
        " all stand on the stage with the loss (L); write them before it, as in ...mL",
        stages.layout ? stages.layout->text() : "");
  const std::string problem = deepstack_problem(config, split.stages().front().num_layers);
  check<ConfigError>(problem.empty(), "{}", problem);
  return split;
}

std::vector<ChunkPlace> chunk_places(const layout::SplitRequest& stages, const ModelConfig& config,
                                     const parallel::ParallelContext& context) {
  const layout::LayerSplit split = layer_split(stages, config, context.grid().shape().pp);
  std::vector<ChunkPlace> places;
  for (int chunk = 0; chunk < split.chunks(); ++chunk) {
    const layout::Stage stage = split.stage(context.place().pp_rank, chunk);
    places.push_back(
        {stage.offset, stage.num_layers, stage.has_embedding(), stage.has_loss(), !stage.mtp_layers.empty()});
  }
  return places;
}

VirtualModels::VirtualModels(const ModelConfig& config, const ModelOptions& options,
                             const std::vector<ChunkPlace>& places, parallel::ParallelContext& context)
    : config_(config), context_(context) {
  for (const ChunkPlace& place : places) chunks_.push_back(std::make_unique<GptModel>(config, options, place, context));
}

VirtualModels::VirtualModels(std::vector<std::unique_ptr<GptModel>> chunks, parallel::ParallelContext& context)
    : config_(chunks.at(0)->config()), context_(context), chunks_(std::move(chunks)) {}

std::vector<nn::Parameter*> VirtualModels::parameters() const {
  std::vector<nn::Parameter*> all;
  for (const auto& chunk : chunks_)
    for (const auto& parameter : chunk->parameters().all()) all.push_back(parameter.get());
  return all;
}

// A fused parameter (q, k and v) is several tensors here, under the names that files and checkpoints use.
std::vector<parallel::ShardedTensor> VirtualModels::sharded() const {
  std::vector<parallel::ShardedTensor> all;
  for (const nn::Parameter* parameter : parameters()) {
    if (parameter->attached.quantized) continue;
    for (auto& part : parameter->sharded()) all.push_back(std::move(part));
  }
  return all;
}

void VirtualModels::initialize_parameters(uint64_t seed) const {
  for (const auto& chunk : chunks_) chunk->initialize_parameters(seed);
}

std::vector<hf::GlobalTensor> global_tensors(const ModelConfig& config) {
  // Builds the model for one rank on the meta device: the layers themselves know their tensors.
  const auto worlds = comm::World::in_process(1);
  parallel::ParallelContext alone(*worlds[0], layout::RankGrid(layout::GridShape{}));
  ModelOptions options;
  options.device = at::kMeta;
  const GptModel model(config, options, ChunkPlace::whole(config), alone);
  std::vector<hf::GlobalTensor> tensors;
  for (const auto& parameter : model.parameters().all())
    for (const auto& part : parameter->spec.parts)
      tensors.push_back({part.name, part.global_shape, parameter->spec.role == nn::ParameterRole::kBuffer});
  return tensors;
}

}  // namespace megalith::model
