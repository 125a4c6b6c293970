// What a rank holds whether or not it computes: the parameters that its model lists (model/footprint/model_footprint.h)
// in the flat buffers of data parallelism, and the optimizer's state of them.
#pragma once

#include "megalith/layout/layer_split.h"
#include "megalith/model/footprint/model_footprint.h"
#include "megalith/plan/run_shape.h"

namespace megalith::plan {

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
StateBytes state_bytes(const RunShape& run, const model::ModelFootprint& model, const layout::LayerSplit& split,
                       int pp_rank);

}  // namespace megalith::plan
