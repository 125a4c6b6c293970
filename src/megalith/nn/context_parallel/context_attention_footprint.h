// Memory and work of attention itself, between the projections: the kernel on one rank (ops/attention), or, with
// several context-parallel ranks, partial sums in fp32 and blocks of keys and values in transit.
//
// Legend: t tokens of this rank; q, k, v and out: columns of queries, keys, values and the result.
#pragma once

#include "megalith/nn/footprint/layer_walk.h"
#include "megalith/nn/footprint/work_meter.h"

namespace megalith::nn {

// The heads of this rank.
struct CoreHeads {
  double query = 0, key_value = 0;
  double key_dim = 0, value_dim = 0;
  double window = 0;  // tokens that a query sees; 0 means all
};

// With `recompute`, forward keeps only q, k and v, and backward runs attention again first.
class ContextAttentionFootprint {
 public:
  // `recompute` is that of the layer (recompute_modules: core_attn).
  ContextAttentionFootprint(const CoreHeads& heads, bool recompute) : heads_(heads), recomputes_(recompute) {}

  // Columns on this rank; times t and the bytes of an element they are the sizes of the tensors.
  double q() const { return heads_.query * heads_.key_dim; }
  double k() const { return heads_.key_value * heads_.key_dim; }
  double v() const { return heads_.key_value * heads_.value_dim; }
  double out() const { return heads_.query * heads_.value_dim; }
  double parts() const { return q() + k() + v(); }

  // Walks forward: q, k and v exist already, the result is added. With `keep`, backward follows.
  void forward(LayerWalk& walk, bool keep) const;
  // Call after the output projection, when forward has dropped its own k and v: frees those of which the ring keeps a
  // copy.
  void release_copied(LayerWalk& walk) const;
  // Walks backward: from the gradient of the result to those of q, k and v. Frees the gradient of the result, and the
  // result itself, which the output projection kept.
  void backward(LayerWalk& walk) const;
  // Reports the products of scores and of probabilities with values.
  void work(WorkMeter& meter) const;

 private:
  void run(LayerWalk& walk, bool keep) const;
  void run_ring(LayerWalk& walk, bool keep) const;
  void ring_backward(LayerWalk& walk) const;
  double kept(const RankSizes& rank) const { return 4 * rank.t * heads_.query; }  // log-sum-exp of each query, in fp32
  double scratch(const RankSizes& rank, bool backward) const;
  double cuda_scratch(const RankSizes& rank, bool backward) const;

  CoreHeads heads_;
  bool recomputes_;
};

}  // namespace megalith::nn
