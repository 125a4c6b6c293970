// Mirrors NormFunction (ops/norm_rope/norm.cc) as norm_fork uses it: backward adds the gradient of the
// residual stream to its own, in a new tensor.
#include "megalith/nn/norm_footprint.h"

namespace megalith::nn {

NormFootprint::NormFootprint(const FootprintScope& scope, const NormShape& shape) : NormFootprint(shape) {
  scope.add({.numel = shape.size}, "weight");
  if (shape.kind == ops::NormKind::kLayer) scope.add_bias({{"", shape.size}});
}

void NormFootprint::forward(LayerWalk& walk, bool keep) const {
  walk.take(walk.rank().stream());
  if (keep) walk.take(kept(walk.rank()));
}

void NormFootprint::backward(LayerWalk& walk, bool give_stream_grad, bool give_input) const {
  const double residual = walk.rank().residual();
  walk.take(residual);              // grad_x
  walk.give(walk.rank().stream());  // the gradient of the output
  // A deferred weight gradient of the row layer before may still hold the stream's gradient.
  if (walk.release_stream_grad())
    walk.defer(give_stream_grad ? residual : 0);
  else if (give_stream_grad)
    walk.give(residual);
  if (give_input) walk.give(residual);
  walk.give(kept(walk.rank()));
}

}  // namespace megalith::nn
