// ModelFootprint: parameters of the chunks of a model on a rank, and the memory and work of a micro-batch, by
// arithmetic. It mirrors GptModel: towers, embedding, layers with their recomputation, multi-token prediction, head and
// loss. The planner calls it for every layout that it considers; nothing is allocated.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "megalith/layout/layer_split.h"
#include "megalith/model/footprint/transformer_block_footprint.h"
#include "megalith/nn/tensor_parallel/linear_footprint.h"
#include "megalith/nn/vision/tower_footprint.h"

namespace megalith::model {

// The effect of one micro-batch on the memory of a rank.
struct ChunkFootprint {
  // The input, if the chunk is not the first, exists before and stays until the end of backward. Leaves what is kept
  // for backward, and the output if the chunk is not the last.
  nn::Footprint forward;
  // The gradient of that output exists before and stays. Leaves the gradient of the input, if there is one; frees
  // everything that was kept, including the input.
  nn::Footprint backward;
  // The weight gradients, if they are a separate action (zero bubble).
  nn::Footprint weight_gradient;
  // Bytes that a head holds which leaves its weight gradient for the pipeline's flush: the gradient of all logits and
  // the input of the projection.
  double deferred_head = 0;
  // Both passes again, cut where they hand over to the pass of another micro-batch (nn/turns.h).
  std::vector<nn::Footprint> forward_pieces, backward_pieces;
};

// Immutable; any number of threads may ask. Bytes and operations are doubles: estimates, and large.
class ModelFootprint {
 public:
  // `config` and `options` outlive it. Check the layout first: one that does not fit the model gives meaningless
  // numbers.
  ModelFootprint(const ModelConfig& config, const ModelOptions& options, const nn::RankSizes& rank);
  ModelFootprint(const ModelFootprint&) = delete;  // its layers refer to rank()
  ModelFootprint& operator=(const ModelFootprint&) = delete;

  // Returns the parameters of a chunk, in the order in which GptModel creates them.
  std::vector<nn::ParameterSize> parameters(const layout::Stage& stage) const;
  // Returns the footprint of a chunk. With `defer`, weight gradients are a separate action.
  ChunkFootprint chunk(const layout::Stage& stage, bool defer) const;
  // Whether the embedding and the head are trained: always without adapters and frozen parts, otherwise if the adapter
  // trains them in full (modules_to_save). A tied head is the embedding.
  bool trains_embedding() const { return trains_embedding_; }
  bool trains_head() const { return trains_head_; }
  // The towers of the model, in the order in which they run: for images, for sounds.
  const std::vector<std::unique_ptr<nn::TowerFootprint>>& towers() const { return towers_; }
  // Whether something of a layer is trained, where layers are chosen; a layer of which a part is trained counts as a
  // whole. True for all without a choice, also with adapters.
  bool trains_layer(int64_t layer) const { return !choice_ || choice_->trains_layer(layer); }
  // Whether something below the first layer is trained, so that the layers' input needs a gradient.
  bool trains_below() const;
  // Whether every part of the model counts the memory of adapters.
  bool counts_updates() const;

  // The inputs, and the footprints of single parts, for a breakdown of the memory.
  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  const nn::RankSizes& rank() const { return rank_; }
  const TransformerBlockFootprint& layer(int64_t number) const { return layers_.at(static_cast<size_t>(number)).block; }
  const nn::NormFootprint& final_norm() const { return final_norm_; }
  // Sizes for layers that are not trained, where some are chosen.
  const nn::RankSizes& frozen_rank() const { return frozen_rank_; }
  // Returns the projection to the logits of this rank's part of the vocabulary, or to the scores of a model that scores
  // sequences.
  const nn::ColumnFootprint& head() const { return head_; }

 private:
  // One transformer layer on this rank.
  struct Layer {
    nn::ParameterSizes parameters;
    TransformerBlockFootprint block;
  };

  const ModelConfig& config_;
  const ModelOptions& options_;
  const nn::RankSizes rank_;
  const nn::RankSizes frozen_rank_;  // sizes for layers that are not chosen
  const std::optional<TrainedLayers> choice_;
  const int64_t vocab_rows_;  // rows of the padded vocabulary on this rank
  const bool trains_embedding_, trains_head_;
  const bool trains_final_bias_;  // beside an adapter
  const nn::NormFootprint final_norm_;
  const nn::ColumnFootprint head_;
  std::unique_ptr<const nn::UpdateSizes> updates_;  // with an adapter
  std::vector<std::unique_ptr<nn::TowerFootprint>> towers_;
  std::vector<Layer> layers_;
};

}  // namespace megalith::model
