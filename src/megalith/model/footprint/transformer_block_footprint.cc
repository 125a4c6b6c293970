// Memory of a block. Mirrors transformer_block.cc: each branch is norm, part, dropout. The stream between the branches
// is kept, because it is the input of the second norm; [s, h] bytes of a dropout mask are kept per branch.
#include "megalith/model/footprint/transformer_block_footprint.h"

#include "megalith/model/block_parts.h"
#include "megalith/model/block_shapes_internal.h"

namespace megalith::model {

TransformerBlockFootprint::TransformerBlockFootprint(const nn::FootprintScope& scope, const ModelConfig& config,
                                                     const ModelOptions& options, int64_t layer)
    : rank_(scope.rank()),
      dropout_(config.hidden_dropout),
      attention_{.norm = {scope.child("attention_norm"), norm_shape(config)},
                 .part = attention_footprint(scope.child("attention"), config, options, layer),
                 .repeated = attention_kind(config, layer)->repeated(options.recompute)},
      feed_forward_{.norm = {scope.child("mlp_norm"), norm_shape(config)},
                    .part = feed_forward_footprint(scope.child("mlp"), config, options, layer),
                    .repeated = feed_forward_kind(config, layer)->repeated(options.recompute)} {}

void TransformerBlockFootprint::forward(nn::LayerWalk& walk, bool keep, bool bottom) const {
  attention_.norm.forward(walk, keep && !bottom);
  run_part(walk, attention_, keep);
  // See ChunkWalk: the input of the bottom layer serves forward only.
  if (bottom && keep) walk.give(rank_.stream());  // the input, which nothing needs any more
  feed_forward_.norm.forward(walk, keep);
  run_part(walk, feed_forward_, keep);
  if (!keep) walk.give(rank_.stream());  // the stream between the branches
}

void TransformerBlockFootprint::backward(nn::LayerWalk& walk, const Borders& borders, bool bottom) const {
  run_part_backward(walk, feed_forward_, /*wanted=*/true);
  feed_forward_.norm.backward(walk, !borders.grad_held, true);
  run_part_backward(walk, attention_, !bottom);
  if (bottom)
    walk.give(rank_.stream());  // the stream's gradient ends here
  else
    attention_.norm.backward(walk, true, !borders.input_held);
}

// The part's result is on the stream; dropout writes a new tensor.
void TransformerBlockFootprint::run_part(nn::LayerWalk& walk, const Branch& branch, bool keep) const {
  const double stream = rank_.stream();
  branch.part->forward(walk, keep && !branch.repeated);
  if (dropout_ > 0) {
    walk.take(stream);
    if (keep) walk.take(rank_.s * rank_.h);
    walk.give(stream);
  }
  if (!keep || rank_.discards_norms) walk.give(stream);  // the output of the norm
}

void TransformerBlockFootprint::run_part_backward(nn::LayerWalk& walk, const Branch& branch, bool wanted) const {
  const double stream = rank_.stream(), masks = rank_.s * rank_.h;
  if (rank_.discards_norms && branch.part->keeps_input()) walk.take(stream);
  if (dropout_ > 0) walk.take(stream);
  if (branch.repeated) {
    branch.part->forward(walk, /*keep=*/true);
    // Recomputed parts are one autograd node with two inputs, so the residual's gradient is not the stream's own
    // tensor.
    walk.take(stream);  // a separate gradient of the residual
  }
  branch.part->backward(walk, wanted);
  if (branch.repeated) {
    walk.end_pass();  // recomputed parts have a backward pass of their own
    walk.give(2 * stream);
  }
  if (dropout_ > 0) walk.give(stream + masks);
}

}  // namespace megalith::model
