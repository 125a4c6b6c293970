// MtpLayer: multi-token prediction (DeepSeek-V3, arXiv:2412.19437): a layer behind the model that predicts one token
// further ahead, from the hidden state of a token and the embedding of the next one.
//
//   embedding of the next token ─► norm ─┐
//                                        ├─ [embedding | hidden] ─► projection 2h -> h ─► transformer block ─► norm
//   hidden state (of the depth before) ─► norm ─┘
//
// Embedding and head are the model's own. Legend: t tokens, h hidden.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/model/transformer_block.h"
#include "megalith/nn/tensor_parallel/replicated_linear.h"

namespace megalith::model {

class MtpLayer {
 public:
  // `depth`: 0 predicts the token behind the next one. The block is of the kind of the model's last layer. `context`
  // outlives it.
  MtpLayer(const nn::ParameterScope& scope, const ModelConfig& config, const ModelOptions& options, int64_t depth,
           parallel::ParallelContext& context);

  // Both [t, h] (or [t/tp, h]) -> what the head takes, and the next depth.
  at::Tensor forward(const at::Tensor& embedded, const at::Tensor& hidden, const nn::LayerInput& input) const;

  const TransformerBlock& block() const { return block_; }

 private:
  nn::Norm embedding_norm_, hidden_norm_;
  nn::ReplicatedLinear projection_;  // whole on every tp rank: with sequence parallelism nothing has to travel
  TransformerBlock block_;
  nn::Norm norm_;
};

}  // namespace megalith::model
