#include "megalith/model/footprint/transformer_block_footprint.h"

#include "megalith/model/block_parts.h"
#include "megalith/model/block_shapes_internal.h"

namespace megalith::model {

TransformerBlockFootprint::TransformerBlockFootprint(const nn::FootprintScope& scope, const ModelConfig& config,
                                                     const ModelOptions& options, int64_t layer)
    : rank_(scope.rank()),
      dropout_(config.hidden_dropout),
      repeats_feed_forward_(config.is_moe(layer) ? options.recompute.moe : options.recompute.mlp),
      attention_norm_(scope.child("attention_norm"), norm_shape(config)),
      attention_(attention_footprint(scope.child("attention"), config, options, layer)),
      feed_forward_norm_(scope.child("mlp_norm"), norm_shape(config)),
      feed_forward_(feed_forward_footprint(scope.child("mlp"), config, options, layer)) {}

void TransformerBlockFootprint::forward(nn::LayerWalk& walk, bool keep, bool bottom) const {
  attention_norm_.forward(walk, keep && !bottom);
  attention_->forward(walk, keep);
  end_branch(walk, keep);
  if (bottom && keep) walk.give(rank_.stream());  // its input: nobody needs it any more
  feed_forward_norm_.forward(walk, keep);
  feed_forward_->forward(walk, keep && !repeats_feed_forward_);
  end_branch(walk, keep);
  if (!keep) walk.give(rank_.stream());  // between the branches
}

void TransformerBlockFootprint::backward(nn::LayerWalk& walk, const Borders& borders, bool bottom) const {
  const double stream = rank_.stream(), masks = rank_.s * rank_.h;
  if (rank_.discards_norms && feed_forward_->keeps_input()) walk.take(stream);
  if (dropout_ > 0) walk.take(stream);
  if (repeats_feed_forward_) {
    feed_forward_->forward(walk, /*keep=*/true);
    walk.take(stream);  // the residual's gradient, for itself
  }
  feed_forward_->backward(walk, /*wanted=*/true);
  if (repeats_feed_forward_) walk.give(2 * stream);
  if (dropout_ > 0) walk.give(stream + masks);
  feed_forward_norm_.backward(walk, !borders.grad_held, true);

  if (rank_.discards_norms && attention_->keeps_input()) walk.take(stream);
  if (dropout_ > 0) walk.take(stream);
  attention_->backward(walk, !bottom);
  if (dropout_ > 0) walk.give(stream + masks);
  if (bottom)
    walk.give(stream);  // the stream's gradient ends here
  else
    attention_norm_.backward(walk, true, !borders.input_held);
}

// The branch's result is on the stream; dropout makes a new one of it.
void TransformerBlockFootprint::end_branch(nn::LayerWalk& walk, bool keep) const {
  const double stream = rank_.stream();
  if (dropout_ > 0) {
    walk.take(stream);
    if (keep) walk.take(rank_.s * rank_.h);
    walk.give(stream);
  }
  if (!keep || rank_.discards_norms) walk.give(stream);  // the output of the norm
}

}  // namespace megalith::model
