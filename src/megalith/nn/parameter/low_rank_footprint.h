// What updates of low rank (low_rank.h) hold while a layer runs: A and B in the type of the activations, x·Aᵀ and its
// gradient, the mask of their dropout. Updates that do not exist (UpdateSize::any) hold nothing.
#pragma once

#include "megalith/nn/footprint/footprint_scope.h"
#include "megalith/nn/footprint/layer_walk.h"

namespace megalith::nn {

// x·Aᵀ of `rows` rows comes and, with `keep`, stays for backward; with dropout so do `mask` bytes.
void update_forward(LayerWalk& walk, const UpdateSize& update, double rows, double mask, bool keep);
// Backward in two steps, as the layer around it takes them: the gradient of x·Aᵀ comes; both go.
void take_hidden_grad(LayerWalk& walk, const UpdateSize& update, double rows);
void give_hidden(LayerWalk& walk, const UpdateSize& update, double rows, double mask);

}  // namespace megalith::nn
