// What attention itself holds, between the projections: one rank's kernel (ops/attention), or, with several
// context-parallel ranks, partial sums in fp32 and blocks of keys and values that come and go.
//
// Legend: t tokens of this rank, q, k, v and out columns of queries, keys, values and the result.
#pragma once

#include "megalith/nn/footprint/layer_walk.h"
#include "megalith/nn/footprint/work_meter.h"

namespace megalith::nn {

// Heads of this rank.
struct CoreHeads {
  double query = 0, key_value = 0;
  double key_dim = 0, value_dim = 0;
  double window = 0;  // tokens that a query sees; 0 means all
};

class ContextAttentionFootprint {
 public:
  ContextAttentionFootprint(const CoreHeads& heads, bool recompute) : heads_(heads), recomputes_(recompute) {}

  double q() const { return heads_.query * heads_.key_dim; }
  double k() const { return heads_.key_value * heads_.key_dim; }
  double v() const { return heads_.key_value * heads_.value_dim; }
  double out() const { return heads_.query * heads_.value_dim; }
  double parts() const { return q() + k() + v(); }

  // q, k and v are there; the result comes. `keep`: for backward.
  void forward(LayerWalk& walk, bool keep) const;
  // After the output projection, when forward has let go of its own k and v: those of which a ring keeps a copy go.
  void release_copied(LayerWalk& walk) const;
  // The gradient of the result is there; the gradients of q, k and v come, it goes, and so does the result, which the
  // output projection kept.
  void backward(LayerWalk& walk) const;
  void work(WorkMeter& meter) const;

 private:
  void run(LayerWalk& walk, bool keep) const;
  void run_ring(LayerWalk& walk, bool keep) const;
  void ring_backward(LayerWalk& walk) const;
  double kept(const RankSizes& rank) const { return 4 * rank.t * heads_.query; }  // log-sum-exp of each query, in fp32
  double scratch(const RankSizes& rank, bool backward) const;

  CoreHeads heads_;
  bool recomputes_;
};

}  // namespace megalith::nn
