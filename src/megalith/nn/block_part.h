// BlockPart: one of the two parts of a transformer layer: the one that mixes tokens (attention, …) or the one that
// works on each token alone (an MLP, experts, …). model::TransformerBlock holds one of each; a program may add its own
// kinds (model/part_kind.h).
//
// Legend: t tokens, h hidden.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/nn/layer_input.h"

namespace megalith::nn {

class Router;

// One thread per rank. All ranks of the tensor-parallel group (and of the context-parallel group if the part mixes
// tokens) call forward together.
class BlockPart {
 public:
  virtual ~BlockPart() = default;

  // Returns f(x) + residual for x [t, h] (or [t/tp, h] with sequence parallelism), the output of a norm; the result has
  // the shape of x. `residual` may be undefined. Backward writes only the gradients of the part's parameters; nothing
  // else may change, because recomputation calls forward twice. input.cache is set in generation only.
  virtual at::Tensor forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& input) const = 0;

  // Returns the router of its experts, whose load a training step balances; nullptr without experts.
  virtual const Router* router() const { return nullptr; }
};

}  // namespace megalith::nn
