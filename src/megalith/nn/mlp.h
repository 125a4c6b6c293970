// The feed-forward block: gated (SwiGLU, GeGLU) or plain, its width split over tensor-parallel ranks.
//
// Legend: t tokens, h hidden, f width.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "megalith/nn/block_part.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "megalith/ops/norm_rope/activation.h"

namespace megalith::nn {

class FootprintScope;
class PartFootprint;

struct MlpShape {
  int64_t hidden = 0;
  int64_t width = 0;
  bool gated = true;
  bool bias = false;
  ops::Activation activation = ops::Activation::kSilu;
  Init init;                          // of the projection up
  Init out_init;                      // of the projection down
  bool recompute_activation = false;  // what the activation gives is computed twice instead of kept
};

// Gated: parameters gate_up (gate | up) and down; plain: up and down.
class Mlp : public BlockPart {
 public:
  Mlp(const ParameterScope& scope, const MlpShape& shape, const TensorParallel& tp);

  // x [t, h] (or [t/tp, h]) -> projection down + residual, of the same shape. `residual` undefined: none.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual) const;
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& /*input*/) const override {
    return forward(x, residual);
  }

 private:
  MlpShape shape_;
  ColumnParallelLinear up_;
  RowParallelLinear down_;
};

// The outputs of the projection up: gate | up, or up alone.
std::vector<OutputPart> up_parts(const MlpShape& shape);

// What it needs, for the planner. `shares_input`: others read the input, too, and give it back.
std::unique_ptr<PartFootprint> make_footprint(const FootprintScope& scope, const MlpShape& shape,
                                              bool shares_input = false);

}  // namespace megalith::nn
