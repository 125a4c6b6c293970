// Memory that a rank holds all the time: the parameters that its model lists (model/footprint/model_footprint.h) in the
// flat buffers of data parallelism, and their optimizer state.
#pragma once

#include "megalith/layout/layer_split.h"
#include "megalith/model/footprint/model_footprint.h"
#include "megalith/plan/run_shape.h"

namespace megalith::plan {

// Traffic of a rank with the others that hold the same parameters, once per step: dense parameters with the ranks
// of dp and cp, experts with those of edp.
struct SharedBytes {
  double gradients = 0, parameters = 0;
  double largest_bucket = 0;  // gradients of the largest bucket
  // Returns the share of the traffic that no computation can hide: all of it where one bucket has everything.
  double last_bucket() const { return gradients > 0 ? largest_bucket / gradients : 0; }
};

// Bytes of the flat buffers and of the optimizer state of a pipeline rank.
struct StateBytes {
  double parameters = 0;
  double frozen = 0;     // part of `parameters` without gradients, outside the buffers
  double reference = 0;  // parameters of a second model, which is not trained; hidden states of a teacher
  double gradients = 0;
  double optimizer = 0;       // on the device: main parameters and states of the update rule
  double optimizer_host = 0;  // the offloaded part, on the host
  double largest_bucket = 0;  // gradients of the largest bucket, which are reduced together
  double elements = 0;        // without padding
  double owned = 0;           // elements that this rank updates, with padding
  SharedBytes dense, experts;
  double matrix_elements = 0;  // part of `elements` that Muon updates
  nn::MatrixWork matrices;     // Muon's work per step of its iteration, before ranks share it
  double before_fp8 = 0;       // parameters in fp8 as they are loaded: held until the optimizer has cast them
};
// Returns the bytes on a rank of stage `pp_rank`. Exact for dense and expert parameters alike: padding and shards
// follow optim::plan_buffer.
StateBytes state_bytes(const RunShape& run, const model::ModelFootprint& model, const layout::LayerSplit& split,
                       int pp_rank);

}  // namespace megalith::plan
