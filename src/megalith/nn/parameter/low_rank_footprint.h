// Memory of low-rank updates (low_rank.h) while a layer runs: A and B cast to the dtype of the activations, x·Aᵀ and
// its gradient, and the dropout mask; with magnitudes also the unscaled output and the scaled gradient of the output.
// All functions do nothing if there is no update (UpdateSize::any).
#pragma once

#include "megalith/nn/footprint/footprint_scope.h"
#include "megalith/nn/footprint/layer_walk.h"

namespace megalith::nn {

// Adds x·Aᵀ of `rows` rows, which stays for backward with `keep`; with dropout so do `mask` bytes.
void update_forward(LayerWalk& walk, const UpdateSize& update, double rows, double mask, bool keep);
// Backward in two steps, as in the layer: the first adds the gradient of x·Aᵀ, the second frees both.
void take_hidden_grad(LayerWalk& walk, const UpdateSize& update, double rows);
void give_hidden(LayerWalk& walk, const UpdateSize& update, double rows, double mask);

}  // namespace megalith::nn
