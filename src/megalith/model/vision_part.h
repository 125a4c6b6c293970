// VisionPart: the vision tower of the first chunk, run on the images of a micro-batch.
//
//   pixels of all images ─ own images ─► tower ─ gather over tp x cp ─► rows [m, 1 + levels, h]
//   ids ─► embedding ─ replaced by row 0 where a token is visual ─► layer 0 ─ + row 1 ─► layer 1 ─ + row 2 ─► …
//
// Legend: t tokens, h hidden, m gathered rows (with padding), levels: deepstack rows of a token.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "megalith/model/model_input.h"
#include "megalith/nn/tensor_parallel/tensor_parallel.h"
#include "megalith/nn/vision/image_share.h"
#include "megalith/nn/vision/vision_tower.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::model {

// The rows of a micro-batch's images, and the tokens that they belong to. Empty if there are no images.
struct VisualRows {
  at::Tensor embeddings;  // [m, h]: in place of token embeddings
  at::Tensor deepstack;   // [m, levels, h]: entry j is added after layer j; undefined without levels
  at::Tensor which;       // int64 [t] or [t/tp], the tokens of this rank: their rows, -1 for text

  bool any() const { return which.defined(); }
};

// Turns row numbers of a micro-batch's tokens, int64 [t] with -1 for tokens without a row, into those among gathered
// rows, for the tokens that this rank holds: [t] or [t/tp] on `device`.
at::Tensor gathered_numbers(const at::Tensor& rows_of_tokens, const nn::MediaShare& share, const nn::TensorParallel& tp,
                            at::Device device);

// Used by one thread per rank.
class VisionPart {
 public:
  // `scope` is that of the tower; `tp` is how the language model splits its tokens.
  VisionPart(const nn::ParameterScope& scope, const nn::VisionShape& shape, const nn::TensorParallel& tp,
             const parallel::ParallelContext& context);

  // Runs the tower. All ranks of tp x cp call it with the same images. With `recompute`, its blocks keep their input
  // alone.
  VisualRows run(const ModelInput& input, bool recompute) const;
  // Returns x [t, h] or [t/tp, h] with the rows in place of the visual tokens; x itself if there are none.
  at::Tensor replace(const at::Tensor& x, const VisualRows& rows) const;

  // Returns how many deepstack rows a token has.
  int64_t levels() const { return static_cast<int64_t>(tower_.shape().deepstack_blocks.size()); }

 private:
  // Rows of this rank's own images, [share.rows, 1 + levels, h]; empty ones that take part in backward without images.
  at::Tensor own_rows(const at::Tensor& pixels, const std::vector<nn::ImageGrid>& grids, const nn::ImageShare& share,
                      bool recompute) const;

  nn::VisionTower tower_;
  nn::TensorParallel tp_;
  nn::ImageGroups groups_;
};

// Returns x after layer `layer` of the whole model: plus the layer's deepstack rows, if it has any.
at::Tensor add_deepstack(const at::Tensor& x, const VisualRows& rows, int64_t layer);

// Returns why a first chunk with `layers` layers cannot hold the model's deepstack layers; empty if it can.
std::string deepstack_problem(const ModelConfig& config, int64_t layers);

}  // namespace megalith::model
