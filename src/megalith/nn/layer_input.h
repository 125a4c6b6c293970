// What every layer of a forward pass gets beside the hidden states.
#pragma once

#include "megalith/ops/norm_rope/rope.h"
#include "megalith/ops/sequence_layout.h"

namespace megalith::nn {

class KvCache;

struct LayerInput {
  ops::SequenceLayout layout;  // the tokens of this pass
  ops::RopeAngles angles;      // of their positions; not defined: no rotary embedding
  KvCache* cache = nullptr;    // generation: one sequence, tokens behind those cached; nullptr: none
  bool training = true;        // dropout is on
  double aux_loss_scale = 1;   // by what the losses of routers are multiplied, as the model's own loss is
};

}  // namespace megalith::nn
