// AudioPart: the audio tower of the first chunk, run on the sounds of a micro-batch.
//
//   features of all sounds ─ own sounds ─► tower ─ gather over tp x cp ─► rows [m, h]
//   ids ─► embedding ─ replaced by a row where a token stands for sound ─► layer 0 ─► …
//
// Legend: t tokens, h hidden, m gathered rows (with padding).
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/model/model_input.h"
#include "megalith/nn/audio/audio_tower.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/nn/vision/image_share.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::model {

// The rows of a micro-batch's sounds, and the tokens that they belong to. Empty if there are no sounds.
struct SoundRows {
  at::Tensor embeddings;  // [m, h]: in place of token embeddings
  at::Tensor which;       // int64 [t] or [t/tp], the tokens of this rank: their rows, -1 for others

  bool any() const { return which.defined(); }
};

// Used by one thread per rank.
class AudioPart {
 public:
  // `scope` is that of the tower; `tp` is how the language model splits its tokens.
  AudioPart(const nn::ParameterScope& scope, const nn::AudioShape& shape, const nn::TensorParallel& tp,
            const parallel::ParallelContext& context);

  // Runs the tower. All ranks of tp x cp call it with the same sounds. With `recompute`, its parts keep their input
  // alone.
  SoundRows run(const ModelInput& input, bool recompute) const;
  // Returns x [t, h] or [t/tp, h] with the rows in place of the tokens for sound; x itself if there are none.
  at::Tensor replace(const at::Tensor& x, const SoundRows& rows) const;

 private:
  // Rows of this rank's own sounds, [share.rows, h]; empty ones that take part in backward without sounds.
  at::Tensor own_rows(const at::Tensor& features, const std::vector<int64_t>& lengths, const nn::MediaShare& share,
                      bool recompute) const;

  nn::AudioTower tower_;
  nn::TensorParallel tp_;
  nn::ImageGroups groups_;
};

}  // namespace megalith::model
