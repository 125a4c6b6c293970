// What a chunk of a model is of the whole, and what its forward pass gets.
//
// Legend: t tokens, h hidden, v padded vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "megalith/model/families/model_config.h"
#include "megalith/ops/sequence_layout.h"

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

}  // namespace megalith::model
