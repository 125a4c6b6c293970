// NormFootprint: memory of a norm between the parts of a layer (norm.h, ops/norm_rope/norm.h).
#pragma once

#include "megalith/nn/footprint/footprint_scope.h"
#include "megalith/nn/footprint/layer_walk.h"
#include "megalith/nn/norm.h"

namespace megalith::nn {

// Backward reads the input, which is the residual stream and kept anyway, and the statistics of each row.
class NormFootprint {
 public:
  // The first constructor records the parameters; the second leaves that to the caller.
  NormFootprint(const FootprintScope& scope, const NormShape& shape);
  explicit NormFootprint(const NormShape& shape) : statistics_(shape.kind == ops::NormKind::kLayer ? 8 : 4) {}

  // Bytes of the statistics that backward reads.
  double kept(const RankSizes& rank) const { return rank.s * statistics_; }
  // Walks forward: the input [s, h] exists and stays; the output is added.
  void forward(LayerWalk& walk, bool keep) const;
  // Walks backward: the gradients of the output and of the stream are merged into one; what was kept is freed.
  // `give_stream_grad` and `give_input` say that nothing else holds the stream's gradient or the input.
  void backward(LayerWalk& walk, bool give_stream_grad, bool give_input) const;

 private:
  double statistics_;  // bytes per token
};

}  // namespace megalith::nn
