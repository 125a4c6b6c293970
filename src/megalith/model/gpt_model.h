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
#include "megalith/model/model_options.h"
#include "megalith/model/mtp_layer.h"
#include "megalith/model/transformer_block.h"
#include "megalith/nn/parameter/parameter.h"
#include "megalith/nn/tensor_parallel/embedding.h"
#include "megalith/ops/norm_rope/rope.h"
#include "megalith/ops/sequence_layout.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/peft/adapters.h"

namespace megalith::nn {
class KvCache;
}

namespace megalith::model {

// Which part of the model a chunk is.
struct ChunkPlace {
  int64_t first_layer = 0;
  int64_t num_layers = 0;
  bool embedding = true;
  bool head = true;  // final norm, output projection, loss
  bool mtp = false;  // multi-token-prediction layers; only with the head
  static ChunkPlace whole(const ModelConfig& config) {
    return {0, config.num_layers, true, true, config.mtp_layers > 0};
  }
  bool reads_ids() const { return embedding || mtp; }
};

// What a forward pass gets. t is the layout's number of tokens; with sequence parallelism a multiple of tp. With
// several context-parallel ranks everything is of this rank's slice (nn/context_parallel/slice.h).
struct ModelInput {
  ops::SequenceLayout layout;
  at::Tensor ids;      // int64 [t]; chunks that read ids
  at::Tensor hidden;   // output of the chunk before: [t, h] or [t/tp, h]; chunks without the embedding
  at::Tensor targets;  // int64 [t], what each token shall predict, -100: nothing; undefined: logits are wanted
  nn::KvCache* cache = nullptr;  // generation
  bool training = true;          // dropout and recompute are on
  bool last_token_only = false;  // logits of the last token alone: [1, v/tp]
  // What backward will bring as the gradient of every token's loss, where that is known beforehand: it saves a
  // projection when the loss is computed in chunks.
  std::optional<double> loss_grad = {};
  // Gets the losses fp32 [t] of each multi-token-prediction layer: entry d is of what stands d + 1 places behind the
  // target. With targets, on the chunk with those layers; nullptr: they do not run.
  std::vector<at::Tensor>* mtp_losses = nullptr;
};

// What each token shall predict: the label of the next token of its sequence, -100 at its end. labels int64 [t], beside
// their tokens. Of the whole: a slice of its result, not its result for a slice.
at::Tensor shift_labels(const at::Tensor& labels, const ops::SequenceLayout& layout);
// Of any numbers: entry i becomes that of the next token of its sequence, `at_end` at its end.
at::Tensor shift_tokens(const at::Tensor& values, const ops::SequenceLayout& layout, int64_t at_end);

// One thread a rank; `context` outlives it.
class GptModel {
 public:
  // Allocates; initialise_parameters or a checkpoint fills. Throws ConfigError for sizes that tp does not divide.
  GptModel(const ModelConfig& config, const ModelOptions& options, const ChunkPlace& place,
           parallel::ParallelContext& context);
  GptModel(const GptModel&) = delete;
  GptModel& operator=(const GptModel&) = delete;

  // Chunks without the head: hidden states. With the head: losses fp32 [t] where targets are given, equal on all tp
  // ranks, else this rank's columns of the logits [t, v/tp].
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
  // The weight of the output projection; the embedding's where they are tied. nullptr without a head.
  nn::Parameter* head_weight() const { return head_weight_; }
  // nullptr: the model has none. Its parameters are among parameters().
  peft::Adapters* adapters() const { return adapters_.get(); }

  // Called before each part runs forward (the embedding, each layer, the head) with the parameters that it reads: for
  // parameters that are still on their way when the model starts to run (overlap_param_gather).
  using BeforePart = std::function<void(std::span<nn::Parameter* const>)>;
  void set_before_part(BeforePart before_part) { before_part_ = std::move(before_part); }

  // The layers with experts of this chunk, in order, with their numbers in the whole model.
  struct MoePlace {
    int64_t layer;
    const nn::MoeLayer* moe;
  };
  std::vector<MoePlace> moe_layers() const;
  // By what training passes multiply the losses of routers: as the model's own loss is before backward.
  void set_aux_loss_scale(double scale) { aux_loss_scale_ = scale; }

  // The rotary angles of a layout's tokens, kept for the layout that was asked for last; forward asks for them.
  // Undefined tensors without rotary embedding.
  const ops::RopeAngles& angles(const ops::SequenceLayout& layout) const;

  // Fresh weights, the same model for every layout.
  void initialize_parameters(uint64_t seed) const;

 private:
  void make_head(const nn::ParameterScope& root);
  void end_part(const nn::ParameterScope& root);    // of what reads parameters: all that were made since the last
  at::Tensor embed(const ModelInput& input) const;  // -> [t, h] or [t/tp, h]
  at::Tensor run_layers(at::Tensor x, const nn::LayerInput& input) const;
  at::Tensor head(const at::Tensor& x, const ModelInput& input, const nn::LayerInput& each) const;
  // Behind the final norm -> fp32 [t]. `grad`: ModelInput::loss_grad.
  at::Tensor token_losses(const at::Tensor& y, const at::Tensor& targets, std::optional<double> grad) const;
  void run_mtp(const at::Tensor& y, const ModelInput& input, const nn::LayerInput& each) const;
  void before_part(size_t part) const;
  bool is_random() const;  // layers draw random numbers in training
  at::Tensor run_group(const at::Tensor& x, const nn::LayerInput& input, size_t first, size_t count) const;

  ModelConfig config_;
  ModelOptions options_;
  ChunkPlace place_;
  parallel::ParallelContext& context_;
  nn::TensorParallel tp_;
  nn::VocabSize vocab_;
  nn::ParameterSet parameters_;
  std::optional<nn::VocabParallelEmbedding> embedding_;  // also the last stage's copy of it
  nn::Parameter* positions_ = nullptr;                   // [max positions, h]
  std::vector<std::unique_ptr<TransformerBlock>> layers_;
  std::optional<nn::Norm> final_norm_;
  nn::Parameter* head_weight_ = nullptr;
  std::vector<std::unique_ptr<MtpLayer>> mtp_layers_;
  std::unique_ptr<peft::Adapters> adapters_;
  bool trains_ = false;                             // some parameter of the chunk
  size_t listed_ = 0;                               // parameters in parts_
  std::vector<std::vector<nn::Parameter*>> parts_;  // what the embedding, each layer and the head read
  BeforePart before_part_;
  double aux_loss_scale_ = 1;
  mutable ops::SequenceLayout angles_of_;  // what angles_ are of
  mutable ops::RopeAngles angles_;
};

}  // namespace megalith::model
