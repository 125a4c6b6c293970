// The parameters that a rank holds, by size: the same tensors, in the same order, as GptModel makes them.
#pragma once

#include <cstdint>
#include <vector>

#include "megalith/layout/layer_split.h"
#include "megalith/plan/run_shape.h"

namespace megalith::plan {

struct ParameterSize {
  int64_t numel = 0;
  bool expert = false;      // reduced over expert-data-parallel ranks
  bool own_bucket = false;  // a tied embedding of which two stages hold a copy
  bool buffer = false;      // not trained, fp32
  bool adapter = false;     // of an update of low rank: fp32
  bool trained = true;      // has a gradient
  bool operator==(const ParameterSize&) const = default;
};

// Of one layer of the model.
std::vector<ParameterSize> layer_parameters(const RunShape& run, int64_t layer);
// Of a stage, in the order of the forward pass.
std::vector<ParameterSize> stage_parameters(const RunShape& run, const layout::Stage& stage);

// Bytes of the flat buffers and of the optimizer's state of a pipeline rank.
struct StateBytes {
  double parameters = 0;
  double frozen = 0;     // of them without a gradient, outside of the buffers
  double reference = 0;  // of a second model, which is not trained
  double gradients = 0;
  double optimizer = 0;       // on the device: main parameters and states of the update rule
  double optimizer_host = 0;  // of the offloaded part
  double largest_bucket = 0;  // its gradients: what is reduced at a time
  double elements = 0;        // without padding
  double owned = 0;           // elements that this rank updates, with padding
};
StateBytes state_bytes(const RunShape& run, const layout::LayerSplit& split, int pp_rank);

}  // namespace megalith::plan
