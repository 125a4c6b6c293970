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

// Sizes of one block over all tensor-parallel ranks.
struct MlpShape {
  int64_t hidden = 0;  // h
  int64_t width = 0;   // f, of gate and up each
  bool gated = true;   // activation(gate) · up instead of activation(up)
  bool bias = false;   // on both projections
  ops::Activation activation = ops::Activation::kSilu;
  Init init;                          // for the up projection
  Init out_init;                      // for the down projection
  bool recompute_activation = false;  // recompute the activation's output in backward instead of keeping it
};

// Its parameters are gate_up (gate | up) and down if gated, otherwise up and down.
class Mlp : public BlockPart {
 public:
  // Throws ConfigError if tp does not divide the width.
  Mlp(const ParameterScope& scope, const MlpShape& shape, const TensorParallel& tp);

  // x [t, h] (or [t/tp, h]) -> down projection + residual, same shape. `residual` may be undefined.
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual) const;
  at::Tensor forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& /*input*/) const override {
    return forward(x, residual);
  }
  // The two halves of it, for a caller with other work between them: the up projection [t, 2f/tp] (f/tp if not gated)
  // before its activation; activation, down projection and residual. Between them tokens may be in the order of slices
  // (linear_function.h).
  at::Tensor forward_up(const at::Tensor& x) const;
  at::Tensor forward_down(const at::Tensor& up, const at::Tensor& residual) const;

 private:
  MlpShape shape_;
  TensorParallel tp_;
  ColumnParallelLinear up_;
  RowParallelLinear down_;
};

// Returns the tensors that the up projection fuses: gate | up, or up alone.
std::vector<OutputPart> up_parts(const MlpShape& shape);

// Returns the memory and work of the block, for the planner. With `shares_input` another part reads the input as well,
// and frees it.
std::unique_ptr<PartFootprint> make_footprint(const FootprintScope& scope, const MlpShape& shape,
                                              bool shares_input = false);

}  // namespace megalith::nn
