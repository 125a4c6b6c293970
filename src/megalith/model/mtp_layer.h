// MtpLayer: multi-token prediction (DeepSeek-V3, arXiv:2412.19437): a layer after the model that predicts one token
// further ahead, from the hidden state of a token and the embedding of the next one.
//
//   embedding of the next token ──────────► norm ─┐
//                                                 ├─ [embedding | hidden] ─► projection 2h -> h ─► block ─► norm
//   hidden state (of the previous depth) ─► norm ─┘
//
// Embedding and head are the model's own. Legend: t tokens, h hidden.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/model/transformer_block.h"
#include "megalith/nn/tensor_parallel/replicated_linear.h"

namespace megalith::model {

// Used by the head of the last chunk; all ranks of a tensor-parallel group call forward together.
class MtpLayer {
 public:
  // Depth 0 predicts the token after the next one. The block is of the same kind as the model's last layer. `context`
  // outlives it.
  MtpLayer(const nn::ParameterScope& scope, const ModelConfig& config, const ModelOptions& options, int64_t depth,
           parallel::ParallelContext& context);

  // embedded and hidden [t, h] (or [t/tp, h]) -> the input of the head and of the next depth, same shape.
  at::Tensor forward(const at::Tensor& embedded, const at::Tensor& hidden, const nn::LayerInput& input) const;

  const TransformerBlock& block() const { return block_; }

 private:
  nn::Norm embedding_norm_, hidden_norm_;
  at::ScalarType stream_dtype_;
  nn::ReplicatedLinear projection_;  // replicated over tp: with sequence parallelism it needs no collective
  TransformerBlock block_;
  nn::Norm norm_;
};

}  // namespace megalith::model
