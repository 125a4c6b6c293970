// ModelFootprint: what the chunks of a model need on a rank, by arithmetic: their parameters, the memory of a
// micro-batch, and the work of it. It follows GptModel: embedding, layers with their recomputation, multi-token
// prediction, head and loss. The planner calls it for every layout that it weighs; nothing is allocated.
#pragma once

#include <memory>
#include <vector>

#include "megalith/layout/layer_split.h"
#include "megalith/model/footprint/transformer_block_footprint.h"
#include "megalith/nn/tensor_parallel/linear_footprint.h"

namespace megalith::model {

// What one micro-batch does to the memory of a rank.
struct ChunkFootprint {
  // The input of a chunk that is not the first is there before, and stays until the end of backward. Leaves what is
  // kept, and the output of a chunk that is not the last.
  nn::Footprint forward;
  // The gradient of that output is there before, and stays. Leaves that of the input, where there is one; everything
  // that was kept is gone, the input too.
  nn::Footprint backward;
  // The weight gradients, where they are an action of their own (zero bubble).
  nn::Footprint weight_gradient;
};

class ModelFootprint {
 public:
  // `config` and `options` outlive it. Layouts that do not fit the model give numbers without meaning: check them
  // before.
  ModelFootprint(const ModelConfig& config, const ModelOptions& options, const nn::RankSizes& rank);
  ModelFootprint(const ModelFootprint&) = delete;  // its layers refer to rank()
  ModelFootprint& operator=(const ModelFootprint&) = delete;

  // The parameters of a chunk, in the order in which GptModel makes them.
  std::vector<nn::ParameterSize> parameters(const layout::Stage& stage) const;
  // `defer`: weight gradients wait for an action of their own.
  ChunkFootprint chunk(const layout::Stage& stage, bool defer) const;
  // Whether the memory of adapters is counted for every part of the model.
  bool counts_updates() const;

  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  const nn::RankSizes& rank() const { return rank_; }
  const TransformerBlockFootprint& layer(int64_t number) const { return layers_.at(static_cast<size_t>(number)).block; }
  const nn::NormFootprint& final_norm() const { return final_norm_; }
  // The projection to the logits of this rank's part of the vocabulary.
  const nn::ColumnFootprint& head() const { return head_; }

 private:
  struct Layer {
    nn::ParameterSizes parameters;
    TransformerBlockFootprint block;
  };

  const ModelConfig& config_;
  const ModelOptions& options_;
  const nn::RankSizes rank_;
  const int64_t vocab_rows_;  // of the padded vocabulary, on this rank
  const nn::NormFootprint final_norm_;
  const nn::ColumnFootprint head_;
  std::vector<Layer> layers_;
};

}  // namespace megalith::model
