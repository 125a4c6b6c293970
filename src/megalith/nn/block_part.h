// BlockPart: one of the two parts of a transformer layer, that which mixes tokens (attention, …) or that which works on
// each token alone (an MLP, experts, …). model::TransformerBlock holds two of them; a program may bring its own
// (model/part_kind.h).
//
// Legend: t tokens, h hidden.
#pragma once

#include <ATen/core/Tensor.h>

#include "megalith/nn/layer_input.h"

namespace megalith::nn {

class Router;

// One thread per rank. All ranks of the tensor-parallel group (and of the context-parallel one, where the part mixes
// tokens) call forward together.
class BlockPart {
 public:
  virtual ~BlockPart() = default;

  // x [t, h] (or [t/tp, h] with sequence parallelism), the output of a norm -> what the part makes of it + residual, of
  // the same shape. `residual` undefined: none. What backward writes goes to the gradients of the part's parameters;
  // nothing else may change, because recomputation calls forward twice. input.cache is used in generation only.
  virtual at::Tensor forward(const at::Tensor& x, const at::Tensor& residual, const LayerInput& input) const = 0;

  // The router of its experts, whose balance a training step looks after; nullptr without experts.
  virtual const Router* router() const { return nullptr; }
};

}  // namespace megalith::nn
