// LayerInput: the arguments that every layer receives in a forward pass besides the hidden states. All layers of a pass
// share one; it is made once per micro-batch.
#pragma once

#include "megalith/ops/norm_rope/rope.h"
#include "megalith/ops/sequence_layout.h"

namespace megalith::nn {

class KvCache;

// Cheap to copy: tensors and layouts are shared. Functions that run again in backward capture it by value.
struct LayerInput {
  ops::SequenceLayout layout;  // the tokens of this pass
  ops::RopeAngles angles;      // rotary angles of their positions; undefined without a rotary embedding
  KvCache* cache = nullptr;    // in generation: one sequence, whose cached tokens precede those of this pass
  bool training = true;        // dropout is on
  double aux_loss_scale = 1;   // factor of the router losses, the same as that of the model's own loss
};

}  // namespace megalith::nn
