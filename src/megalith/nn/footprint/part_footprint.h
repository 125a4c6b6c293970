// PartFootprint: the memory and work of one part of a transformer layer (self-attention, an MLP, experts, …) on a rank,
// by arithmetic alone: nothing is allocated and no ranks are started.
//
// Each kind of layer declares `make_footprint(scope, shape, …)` in its header and implements it next to its own source
// (mlp.cc, mlp_footprint.cc), so that a change to what a layer keeps is easily mirrored in its footprint. The
// constructor of a footprint declares the parameters (FootprintScope); the functions below state the rest. model/
// assembles parts into blocks and chunks; plan/ adds them up.
#pragma once

#include "megalith/nn/footprint/footprint_scope.h"
#include "megalith/nn/footprint/layer_walk.h"
#include "megalith/nn/footprint/work_meter.h"

namespace megalith::nn {

// Constant after construction; may be walked several times.
class PartFootprint {
 public:
  virtual ~PartFootprint() = default;

  // Walks forward: the input [s, h], the output of a norm, exists already; the output is added to the residual stream.
  // With `keep`, tensors for backward stay. The caller frees the input without `keep` or if norms are discarded
  // (RankSizes::discards_norms); otherwise a part that does not keep its input frees it.
  virtual void forward(LayerWalk& walk, bool keep) const = 0;
  // Walks backward: the gradient of the output exists and stays, because it is also the gradient of the residual. Adds
  // the gradient of the input if it is `wanted`; frees everything that forward kept, including the input.
  virtual void backward(LayerWalk& walk, bool wanted) const = 0;
  // Reports the computation and data movement.
  virtual void work(WorkMeter& meter) const = 0;
  // Whether backward reads the input.
  virtual bool keeps_input() const { return true; }
  // Whether forward and backward count the memory of low-rank updates of its weights. The planner refuses runs that
  // train adapters on a part that does not.
  virtual bool counts_updates() const { return true; }
};

}  // namespace megalith::nn
