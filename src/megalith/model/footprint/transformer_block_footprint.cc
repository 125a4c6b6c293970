// Memory of a block. Mirrors transformer_block.cc: each branch is norm, part, dropout. The stream between the branches
// is kept, because it is the input of the second norm; [s, h] bytes of a dropout mask are kept per branch. A residual
// stream in fp32 is written by the second norm, and by an addition at the end of the block; what a part returns, and
// its gradient, are tensors of their own.
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
  if (adds_in_norm()) walk.take(rank_.residual());
  // See ChunkWalk: the input of the bottom layer serves forward only.
  if (bottom && keep) walk.give(rank_.residual());  // the input, which nothing needs any more
  feed_forward_.norm.forward(walk, keep);
  if (adds_in_norm()) walk.give(rank_.stream());  // the result of attention
  run_part(walk, feed_forward_, keep);
  if (adds_in_norm()) add_at_end(walk);
  if (!keep) walk.give(rank_.residual());  // the stream between the branches
}

// ATen widens the result of the part in a copy on the CPU.
void TransformerBlockFootprint::add_at_end(nn::LayerWalk& walk) const {
  const double widened = rank_.machinery.cuda ? 0 : rank_.residual();
  walk.take(rank_.residual() + widened);
  walk.give(rank_.stream() + widened);
}

void TransformerBlockFootprint::backward(nn::LayerWalk& walk, const Borders& borders, bool bottom) const {
  if (adds_in_norm()) walk.take(rank_.stream());  // the gradient of what the feed-forward part returned
  run_part_backward(walk, feed_forward_, /*wanted=*/true);
  if (adds_in_norm()) walk.take(rank_.stream());  // the same for attention, written by the norm
  feed_forward_.norm.backward(walk, !borders.grad_held, true);
  run_part_backward(walk, attention_, !bottom);
  if (bottom)
    walk.give(rank_.residual());  // the stream's gradient ends here
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
    if (rank_.wide_stream) add_at_end(walk);
  }
  if (!keep || rank_.discards_norms) walk.give(stream);  // the output of the norm
}

void TransformerBlockFootprint::run_part_backward(nn::LayerWalk& walk, const Branch& branch, bool wanted) const {
  const double stream = rank_.stream(), masks = rank_.s * rank_.h;
  if (rank_.discards_norms && branch.part->keeps_input()) walk.take(stream);
  if (dropout_ > 0) {
    walk.take(stream);
    if (rank_.wide_stream) walk.touch(stream);  // the gradient of the dropped result, before that of the part's
  }
  // Recomputed parts are one autograd node. With the residual as their second input, its gradient is not the stream's
  // own tensor.
  const double separate = rank_.wide_stream ? 0 : stream;
  if (branch.repeated) {
    branch.part->forward(walk, /*keep=*/true);
    walk.take(separate);
  }
  branch.part->backward(walk, wanted);
  if (branch.repeated) {
    walk.end_pass();  // recomputed parts have a backward pass of their own
    walk.give(stream + separate);
  }
  if (adds_in_norm()) {
    // A deferred weight gradient of the part's last layer may still hold it.
    if (walk.release_stream_grad())
      walk.defer(stream);
    else
      walk.give(stream);
  }
  if (dropout_ > 0) walk.give(stream + masks);
}

}  // namespace megalith::model
