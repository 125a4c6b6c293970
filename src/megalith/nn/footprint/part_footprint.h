// PartFootprint: what one part of a transformer layer (self-attention, an MLP, experts, …) needs on a rank, by
// arithmetic alone. Nothing is allocated and no rank exists.
//
// Each kind of layer declares `make_footprint(scope, shape, …)` in its header and implements it beside its own source
// (mlp.cc, mlp_footprint.cc), so that whoever changes what a layer keeps finds its footprint next to it. The
// constructor of a footprint states the parameters (FootprintScope); the functions below state the rest. model/ puts
// parts together to blocks and chunks; plan/ adds up.
#pragma once

#include "megalith/nn/footprint/footprint_scope.h"
#include "megalith/nn/footprint/layer_walk.h"
#include "megalith/nn/footprint/work_meter.h"

namespace megalith::nn {

class PartFootprint {
 public:
  virtual ~PartFootprint() = default;

  // Forward: the input [s, h], the output of a norm, is there; the output comes, on the residual stream. `keep`: for
  // backward. The input is the caller's without `keep` and where norms are discarded (RankSizes::discards_norms);
  // otherwise a part that does not keep its input gives it back.
  virtual void forward(LayerWalk& walk, bool keep) const = 0;
  // Backward: the gradient of the output is there and stays (it is that of the residual, too). The gradient of the
  // input comes if it is `wanted`; everything that was kept goes, the input too.
  virtual void backward(LayerWalk& walk, bool wanted) const = 0;
  // What is computed and moved.
  virtual void work(WorkMeter& meter) const = 0;
  // Whether backward reads the input.
  virtual bool keeps_input() const { return true; }
  // Whether forward and backward count the memory of low-rank updates of its weights. Runs that train adapters on a
  // part that does not are refused by the planner.
  virtual bool counts_updates() const { return true; }
};

}  // namespace megalith::nn
