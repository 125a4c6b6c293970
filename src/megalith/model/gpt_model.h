// GptModel: one chunk of a decoder-only model: some of its layers, with the embedding before or the head behind them
// where the chunk is the first or the last.
//
// Legend: t tokens, h hidden, v padded vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "megalith/model/families/model_config.h"
#include "megalith/model/head.h"
#include "megalith/model/model_input.h"
#include "megalith/model/model_options.h"
#include "megalith/model/transformer_block.h"
#include "megalith/nn/moe/router.h"
#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/embedding.h"
#include "megalith/ops/norm_rope/rope.h"
#include "megalith/ops/sequence_layout.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/peft/adapters.h"

namespace megalith::model {

// One thread a rank; `context` outlives it.
class GptModel {
 public:
  // Allocates; initialise_parameters or a checkpoint fills. Throws ConfigError for sizes that tp does not divide.
  GptModel(const ModelConfig& config, const ModelOptions& options, const ChunkPlace& place,
           parallel::ParallelContext& context);
  GptModel(const GptModel&) = delete;
  GptModel& operator=(const GptModel&) = delete;

  // Chunks without the head: hidden states. With the head: losses fp32 [t] where targets are given, equal on all tp
  // ranks, else this rank's columns of the logits [t, v/tp], or what the family's own head gives.
  at::Tensor forward(const ModelInput& input) const;

  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  const ChunkPlace& place() const { return place_; }
  nn::ParameterSet& parameters() { return parameters_; }
  const nn::ParameterSet& parameters() const { return parameters_; }
  // Token ids whose logits are this rank's columns.
  ops::VocabRange vocab_range() const;
  const nn::VocabSize& vocab() const { return vocab_; }
  const nn::TensorParallel& tensor_parallel() const { return tp_; }
  const parallel::ParallelContext& context() const { return context_; }
  // nullptr on chunks without.
  const Head* head() const { return head_.get(); }
  // nullptr: the model has none. Its parameters are among parameters().
  peft::Adapters* adapters() const { return adapters_.get(); }

  // Called before each part runs forward (the embedding, each layer, the head) with the parameters that it reads: for
  // parameters that are still on their way when the model starts to run (overlap_param_gather).
  using BeforePart = std::function<void(std::span<nn::Parameter* const>)>;
  void set_before_part(BeforePart before_part) { before_part_ = std::move(before_part); }

  // The routers of the layers with experts of this chunk, in order, with the layers' numbers in the whole model.
  struct RouterPlace {
    int64_t layer;
    const nn::Router* router;
  };
  std::vector<RouterPlace> routers() const;
  // By what training passes multiply the losses of routers: as the model's own loss is before backward.
  void set_aux_loss_scale(double scale) { aux_loss_scale_ = scale; }

  // The rotary angles of a layout's tokens, kept for the layout that was asked for last; forward asks for them.
  // Undefined tensors without rotary embedding.
  const ops::RopeAngles& angles(const ops::SequenceLayout& layout) const;

  // Fresh weights, the same model for every layout.
  void initialize_parameters(uint64_t seed) const;

 private:
  void make_head(const nn::ParameterScope& root);
  void note_facts();
  void end_part(const nn::ParameterScope& root);    // of what reads parameters: all that were made since the last
  at::Tensor embed(const ModelInput& input) const;  // -> [t, h] or [t/tp, h]
  at::Tensor run_layers(at::Tensor x, const nn::LayerInput& input) const;
  void before_part(size_t part) const;
  at::Tensor run_group(const at::Tensor& x, const nn::LayerInput& input, size_t first, size_t count) const;

  ModelConfig config_;
  ModelOptions options_;
  ChunkPlace place_;
  parallel::ParallelContext& context_;
  nn::TensorParallel tp_;
  nn::VocabSize vocab_;
  nn::ParameterSet parameters_;
  std::optional<nn::VocabParallelEmbedding> embedding_;
  nn::Parameter* positions_ = nullptr;  // [max positions, h]
  std::vector<std::unique_ptr<TransformerBlock>> layers_;
  std::unique_ptr<Head> head_;
  std::unique_ptr<peft::Adapters> adapters_;
  bool trains_ = false;                             // some parameter of the chunk
  bool random_ = false;                             // layers draw random numbers in training
  bool cached_ = true;                              // all layers can run with a KvCache
  size_t listed_ = 0;                               // parameters in parts_
  std::vector<std::vector<nn::Parameter*>> parts_;  // what the embedding, each layer and the head read
  BeforePart before_part_;
  double aux_loss_scale_ = 1;
  mutable ops::SequenceLayout angles_of_;  // what angles_ are of
  mutable ops::RopeAngles angles_;
};

}  // namespace megalith::model
