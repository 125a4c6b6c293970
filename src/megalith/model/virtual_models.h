// VirtualModels: the chunks of the model that this rank holds, one per virtual pipeline stage (or just one without
// virtual stages).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/layout/layer_split.h"
#include "megalith/model/gpt_model.h"

namespace megalith::model {

// Returns how the layers of a model are split over `pp` pipeline stages. `stages` controls the split; its sizes
// (layers, multi-token-prediction layers, stages) are taken from `config` and `pp`, and layers that do not divide
// evenly are balanced. Throws ConfigError for an impossible split.
layout::LayerSplit layer_split(layout::SplitRequest stages, const ModelConfig& config, int pp);
// Returns the chunks of this rank, in the order in which data passes them. Throws like layer_split, on every rank.
std::vector<ChunkPlace> chunk_places(const layout::SplitRequest& stages, const ModelConfig& config,
                                     const parallel::ParallelContext& context);

// Owns the chunks. Movable, not copyable; used by one thread per rank. `context` outlives it.
class VirtualModels {
 public:
  // Allocates one chunk per place, without values.
  VirtualModels(const ModelConfig& config, const ModelOptions& options, const std::vector<ChunkPlace>& places,
                parallel::ParallelContext& context);
  // Takes existing chunks: at least one, all of one configuration and for the ranks of `context`.
  VirtualModels(std::vector<std::unique_ptr<GptModel>> chunks, parallel::ParallelContext& context);

  // A container of chunks, in the order in which data passes them on this rank.
  size_t size() const { return chunks_.size(); }
  GptModel& operator[](size_t chunk) { return *chunks_.at(chunk); }
  const GptModel& operator[](size_t chunk) const { return *chunks_.at(chunk); }
  auto begin() const { return chunks_.begin(); }
  auto end() const { return chunks_.end(); }

  // The configuration of the whole model, and the ranks that it is split over.
  const ModelConfig& config() const { return config_; }
  parallel::ParallelContext& context() const { return context_; }
  // Returns every parameter of every chunk.
  std::vector<nn::Parameter*> parameters() const;
  // Returns what this rank holds of the model, tensor by tensor. Quantized weights are left out: they are frozen, and
  // read from their folder again.
  std::vector<parallel::ShardedTensor> sharded() const;
  // Fills all parameters with initial values; a seed gives the same model for every layout.
  void initialize_parameters(uint64_t seed) const;

 private:
  ModelConfig config_;
  parallel::ParallelContext& context_;
  std::vector<std::unique_ptr<GptModel>> chunks_;
};

// Returns every tensor of the whole model, in the order of the forward pass. Nothing is allocated.
std::vector<hf::GlobalTensor> global_tensors(const ModelConfig& config);

}  // namespace megalith::model
