// GptModel: one chunk of a decoder-only model: some of its layers, preceded by the embedding in the first chunk and
// followed by the head in the last one.
//
//   ids [t] ─► embedding ─► [t, h] ─► layer ─► … ─► layer ─► [t, h] ─► head ─► losses [t] or logits [t, v/tp]
//              first chunk                                             last chunk
//
// Between chunks [t, h] travels through the pipeline; with sequence parallelism every [t, h] here is [t/tp, h]. Legend:
// t tokens, h hidden, v padded vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "megalith/model/audio_part.h"
#include "megalith/model/families/model_config.h"
#include "megalith/model/freeze/trained_layers.h"
#include "megalith/model/head.h"
#include "megalith/model/model_input.h"
#include "megalith/model/model_options.h"
#include "megalith/model/transformer_block.h"
#include "megalith/model/vision_part.h"
#include "megalith/nn/activation_offload.h"
#include "megalith/nn/moe/router.h"
#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/embedding.h"
#include "megalith/ops/norm_rope/rope.h"
#include "megalith/ops/sequence_layout.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/peft/adapters.h"

namespace megalith::model {

// Used by one thread per rank; `context` outlives it.
class GptModel {
 public:
  // Allocates parameters without values: call initialize_parameters() or load a checkpoint. Throws ConfigError for
  // sizes that tp does not divide.
  GptModel(const ModelConfig& config, const ModelOptions& options, const ChunkPlace& place,
           parallel::ParallelContext& context);
  GptModel(const GptModel&) = delete;
  GptModel& operator=(const GptModel&) = delete;

  // Returns hidden states on chunks without the head. With the head, returns losses fp32 [t], equal on all tp ranks, if
  // targets are given; otherwise this rank's columns of the logits [t, v/tp], or the output of the family's own head.
  at::Tensor forward(const ModelInput& input) const;

  // The inputs of the constructor, and the parameters in the order of the forward pass.
  const ModelConfig& config() const { return config_; }
  const ModelOptions& options() const { return options_; }
  const ChunkPlace& place() const { return place_; }
  nn::ParameterSet& parameters() { return parameters_; }
  const nn::ParameterSet& parameters() const { return parameters_; }
  // Returns the token ids whose logits are this rank's columns.
  ops::VocabRange vocab_range() const;
  const nn::VocabSize& vocab() const { return vocab_; }
  const nn::TensorParallel& tensor_parallel() const { return tp_; }
  parallel::ParallelContext& context() const { return context_; }
  // Returns the head, or nullptr on chunks without one.
  const Head* head() const { return head_.get(); }
  // Returns the adapters, or nullptr if the model has none. Their parameters are among parameters().
  peft::Adapters* adapters() const { return adapters_.get(); }

  // Returns the parameters that each part reads, in the order in which parts run: the embedding, each layer, the head.
  const std::vector<std::vector<nn::Parameter*>>& parts() const { return parts_; }
  // Called before each part (the embedding, each layer, the head) runs forward, with the parameters that it reads: for
  // parameters that are still being gathered (overlap_param_gather) or updated when the model starts to run.
  // `before_part` may block; it is called again when a recomputed layer runs in backward.
  using BeforePart = std::function<void(std::span<nn::Parameter* const>)>;
  void set_before_part(BeforePart before_part) { before_part_ = std::move(before_part); }

  // Shows copies of activations to and from the host (nn::ActivationOffload::set_trace).
  void set_trace(TraceRecorder* trace) const {
    if (offload_) offload_->set_trace(trace);
  }
  // Returns the bytes of activations that forward passes have sent to the host so far.
  int64_t offloaded_bytes() const { return offload_ ? offload_->bytes() : 0; }

  // The routers of this chunk in order, with the numbers of their layers in the whole model.
  struct RouterPlace {
    int64_t layer;
    const nn::Router* router;
  };
  std::vector<RouterPlace> routers() const;
  // Sets the factor of the router losses in training passes; use the factor of the model's own loss before backward.
  void set_aux_loss_scale(double scale) { aux_loss_scale_ = scale; }

  // Returns the rotary angles of a layout's tokens, undefined without a rotary embedding. forward uses them; those of
  // the most recent layout are cached.
  const ops::RopeAngles& angles(const ops::SequenceLayout& layout) const;

  // Fills the parameters with initial values; a seed gives the same model for every layout.
  void initialize_parameters(uint64_t seed) const;

 private:
  // Steps of the constructor: the head of the last chunk, and facts about all layers (random_, cached_).
  void make_head(const nn::ParameterScope& root);
  void note_facts();
  void end_part(const nn::ParameterScope& root);  // lists the parameters created since the last call as one part
  // -> [t, h] or [t/tp, h]
  at::Tensor embed(const ModelInput& input, const VisualRows& visual, const SoundRows& sound) const;
  // Throws ConfigError for images or sounds that the model has no tower for.
  void check_media(const ModelInput& input) const;
  at::Tensor with_noise(const at::Tensor& x, const ops::SequenceLayout& layout) const;
  // x [t, h] or [t/tp, h] -> the same shape, with recomputation as the options ask for.
  at::Tensor run_layers(at::Tensor x, const nn::LayerInput& input, const VisualRows& visual) const;
  // Waits, through before_part_, until the parameters of a part are there.
  void before_part(size_t part) const;
  // Layers first … first + count - 1 of the chunk, without recomputation.
  at::Tensor run_group(const at::Tensor& x, const nn::LayerInput& input, const VisualRows& visual, size_t first,
                       size_t count) const;
  // Whether a group of layers lies below all that a choice of layers trains, so that it needs no autograd.
  bool is_below_trained(const at::Tensor& x, const VisualRows& visual, size_t first, size_t count) const;
  // All layers, with the activations of the first ones in host memory.
  at::Tensor run_offloaded(at::Tensor x, const nn::LayerInput& input, const VisualRows& visual) const;

  // Constant after construction, except for the cache of angles and the two setters.
  ModelConfig config_;
  ModelOptions options_;
  ChunkPlace place_;
  parallel::ParallelContext& context_;
  nn::TensorParallel tp_;
  nn::VocabSize vocab_;
  nn::ParameterSet parameters_;
  // Parts of the model; those of other chunks are empty.
  std::optional<VisionPart> vision_;
  std::optional<AudioPart> audio_;
  std::optional<nn::VocabParallelEmbedding> embedding_;
  nn::Parameter* positions_ = nullptr;  // [max positions, h]
  std::vector<std::unique_ptr<TransformerBlock>> layers_;
  std::unique_ptr<Head> head_;
  std::unique_ptr<peft::Adapters> adapters_;
  std::optional<TrainedLayers> trained_layers_;  // empty if none is chosen: all are trained
  std::optional<nn::ActivationOffload> offload_;
  // Facts about the parts, collected by the constructor.
  bool trains_ = false;                             // some parameter of the chunk is trained
  bool random_ = false;                             // layers draw random numbers in training
  bool cached_ = true;                              // all layers can run with a KvCache
  size_t listed_ = 0;                               // parameters in parts_
  std::vector<std::vector<nn::Parameter*>> parts_;  // parameters that the embedding, each layer and the head read
  BeforePart before_part_;
  double aux_loss_scale_ = 1;
  // Cache of angles(): one thread per rank uses the model, so it needs no lock.
  mutable ops::SequenceLayout angles_of_;  // the layout of angles_
  mutable ops::RopeAngles angles_;
};

}  // namespace megalith::model
