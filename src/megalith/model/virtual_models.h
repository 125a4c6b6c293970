// VirtualModels: the chunks of the model that this rank holds, one for each virtual pipeline stage (one without).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/layout/layer_split.h"
#include "megalith/model/gpt_model.h"

namespace megalith::model {

// The chunks of this rank, in the order data passes them. `stages` says how the split is steered; its sizes (layers,
// multi-token-prediction layers, stages) are taken from `config` and `context`, and layers that do not divide are
// balanced. Throws ConfigError, on every rank, for a split that cannot be.
std::vector<ChunkPlace> chunk_places(layout::SplitRequest stages, const ModelConfig& config,
                                     const parallel::ParallelContext& context);

class VirtualModels {
 public:
  VirtualModels(const ModelConfig& config, const ModelOptions& options, const std::vector<ChunkPlace>& places,
                parallel::ParallelContext& context);
  // Chunks that somebody made, at least one, all of one configuration and for the ranks of `context`.
  VirtualModels(std::vector<std::unique_ptr<GptModel>> chunks, parallel::ParallelContext& context);

  size_t size() const { return chunks_.size(); }
  GptModel& operator[](size_t chunk) { return *chunks_.at(chunk); }
  const GptModel& operator[](size_t chunk) const { return *chunks_.at(chunk); }
  auto begin() const { return chunks_.begin(); }
  auto end() const { return chunks_.end(); }

  const ModelConfig& config() const { return config_; }
  parallel::ParallelContext& context() const { return context_; }
  // Every parameter of every chunk.
  std::vector<nn::Parameter*> parameters() const;
  // What this rank holds of the model, tensor by tensor.
  std::vector<parallel::ShardedTensor> sharded() const;
  // Fresh weights from a seed.
  void initialize_parameters(uint64_t seed) const;

 private:
  ModelConfig config_;
  parallel::ParallelContext& context_;
  std::vector<std::unique_ptr<GptModel>> chunks_;
};

// Every tensor of the whole model, in the order of the forward pass. Nothing is allocated.
std::vector<hf::GlobalTensor> global_tensors(const ModelConfig& config);

}  // namespace megalith::model
