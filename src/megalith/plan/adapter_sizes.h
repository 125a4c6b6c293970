// Updates of low rank (LoRA) on the linear layers of a transformer layer: what peft::Adapters attaches, by size, on one
// rank. The weights below them are frozen.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "megalith/plan/run_shape.h"

namespace megalith::plan {

// W + s·B·A for one weight; of experts: for all that a rank holds.
struct UpdateSize {
  int64_t a = 0, b = 0;  // elements
  int64_t hidden = 0;    // columns of x·Aᵀ, of an expert; 0: there is none
  bool any() const { return hidden > 0; }
};

// In the order in which the layer makes its weights.
struct LayerUpdates {
  UpdateSize qkv, out;
  UpdateSize experts_up, experts_down;  // layers with experts
  UpdateSize up, down;                  // the MLP, or the shared experts
};

// Nothing where the run trains all weights.
LayerUpdates layer_updates(const RunShape& run, int64_t layer);

// Every reason why a run with adapters cannot be planned: kinds of layers and targets whose updates are not counted.
std::vector<std::string> adapter_problems(const RunShape& run);

}  // namespace megalith::plan
