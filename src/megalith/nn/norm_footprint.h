// NormFootprint: what a norm between the parts of a layer needs (norm.h, ops/norm_rope/norm.h).
#pragma once

#include "megalith/nn/footprint/footprint_scope.h"
#include "megalith/nn/footprint/layer_walk.h"
#include "megalith/nn/norm.h"

namespace megalith::nn {

class NormFootprint {
 public:
  // Records the parameters; or leaves that to others.
  NormFootprint(const FootprintScope& scope, const NormShape& shape);
  explicit NormFootprint(const NormShape& shape) : statistics_(shape.kind == ops::NormKind::kLayer ? 8 : 4) {}

  // Bytes of the statistics that backward reads.
  double kept(const RankSizes& rank) const { return rank.s * statistics_; }
  // The input [s, h] is there and stays; the output comes.
  void forward(LayerWalk& walk, bool keep) const;
  // The gradient of the output and that of the stream become one; what was kept goes. `give_stream_grad`: nobody else
  // holds the stream's gradient; `give_input`: nobody else holds the input.
  void backward(LayerWalk& walk, bool give_stream_grad, bool give_input) const;

 private:
  double statistics_;  // bytes per token
};

}  // namespace megalith::nn
