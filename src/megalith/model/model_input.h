// ChunkPlace: the part of a model that a chunk covers. ModelInput: the input of its forward pass.
//
// Legend: t tokens, h hidden, v padded vocabulary.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "megalith/model/families/model_config.h"
#include "megalith/ops/sequence_layout.h"

namespace megalith::nn {
class KvCache;
struct Parameter;
}  // namespace megalith::nn

namespace megalith::model {

// The part of the model that a chunk covers.
struct ChunkPlace {
  int64_t first_layer = 0;
  int64_t num_layers = 0;
  bool embedding = true;
  bool head = true;  // final norm, output projection, loss
  bool mtp = false;  // multi-token-prediction layers; only with the head
  // Returns the place of a single chunk that is the whole model.
  static ChunkPlace whole(const ModelConfig& config) {
    return {0, config.num_layers, true, true, config.mtp_layers > 0};
  }
  // Whether forward needs ModelInput::ids.
  bool reads_ids() const { return embedding || mtp; }
};

// The tokens that a multi-token-prediction layer reads besides hidden states: for each token, the one some places
// further on in its sequence.
struct TokensAhead {
  at::Tensor ids;      // int64 [t]; 0 past the end of the sequence, from where nothing is predicted
  at::Tensor targets;  // int64 [t]; -100 past the end
};

// Takes the place of the head's loss: turns y, the output of the final norm ([t, h], or [t/tp, h] with sequence
// parallelism), and the weight of the projection [v/tp, h] into the loss of each token, fp32 [t], equal on all ranks of
// tp.
using HeadLoss = std::function<at::Tensor(const at::Tensor& y, nn::Parameter& weight)>;

// The input of a forward pass. t is the number of tokens of the layout, with sequence parallelism a multiple of tp.
// With several context-parallel ranks all fields describe this rank's slice (nn/context_parallel/slice.h).
struct ModelInput {
  // The bounds of the sequences among the t tokens, and their positions.
  ops::SequenceLayout layout;
  at::Tensor ids;      // int64 [t]; for chunks that read ids
  at::Tensor hidden;   // output of the previous chunk, [t, h] or [t/tp, h]; for chunks without the embedding
  at::Tensor targets;  // int64 [t], target of each token, -100 = ignored; undefined to get logits instead of losses
  // Images and videos of the micro-batch, for the chunk with the embedding; undefined if there are none.
  // Context-parallel ranks all have the images of the whole, and the row numbers of their own tokens.
  at::Tensor pixels = {};       // [p, c], the patches of all images (nn/vision/vision_indices.h)
  at::Tensor grids = {};        // int64 [images, 3] on the host: time, height and width in patches
  at::Tensor visual_rows = {};  // int64 [t]: the tower's output row that replaces a token's embedding, -1 for text
  // Sounds of the micro-batch, in the same way.
  at::Tensor audio_features = {};  // [f, mel bins], the frames of all sounds (nn/audio/audio_shape.h)
  at::Tensor audio_lengths = {};   // int64 [sounds] on the host: frames of each
  at::Tensor audio_rows = {};      // int64 [t]: the row of the audio tower that replaces a token's embedding, or -1
  nn::KvCache* cache = nullptr;    // for generation
  bool training = true;            // dropout and recomputation are on
  bool last_token_only = false;    // logits of the last token only: [1, v/tp]
  // The gradient that backward will pass for every token's loss, if it is known beforehand: this saves a projection if
  // the loss is computed in chunks.
  std::optional<double> loss_grad = {};
  // Receives the losses fp32 [t] of each multi-token-prediction layer; entry d is for the token d + 1 places after the
  // target. Used with targets, on the chunk with those layers; if nullptr, they do not run.
  std::vector<at::Tensor>* mtp_losses = nullptr;
  // One entry per multi-token-prediction layer (tokens_ahead), with mtp_losses.
  std::vector<TokensAhead> ahead = {};
  // With targets, on the chunk with the head: computes the losses that forward returns. nullptr means cross-entropy
  // with the targets. Only heads that accept one (Head::takes_loss) call it; outlives the call of forward.
  const HeadLoss* head_loss = nullptr;
};

// Returns the target of each token: the label of the next token of its sequence, -100 at the end. labels int64 [t] are
// aligned with their tokens. Shift the whole first, then slice: a slice does not contain all next tokens.
at::Tensor shift_labels(const at::Tensor& labels, const ops::SequenceLayout& layout);
// The same for any numbers: entry i becomes that of the next token of its sequence, `at_end` at its end.
at::Tensor shift_tokens(const at::Tensor& values, const ops::SequenceLayout& layout, int64_t at_end);
// Returns the tokens that `layers` multi-token-prediction layers read: entry d is ids and targets of the token d + 1
// places further on. Takes the whole, like the shifts above: a slice is cut from each tensor afterwards.
std::vector<TokensAhead> tokens_ahead(const at::Tensor& ids, const at::Tensor& targets,
                                      const ops::SequenceLayout& layout, int64_t layers);

}  // namespace megalith::model
