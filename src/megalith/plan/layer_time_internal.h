// Seconds of the parts of a model on one rank and one micro-batch.
#pragma once

#include <array>
#include <cstdint>

#include "megalith/plan/cluster.h"
#include "megalith/plan/layer_walk_internal.h"
#include "megalith/plan/step_time.h"

namespace megalith::plan {

struct PartTimes {
  double gemm = 0, attention = 0, memory_bound = 0, recompute = 0, tp = 0, cp = 0, ep = 0;
  double total() const { return gemm + attention + memory_bound + recompute + tp + cp + ep; }
  PartTimes& operator+=(const PartTimes& other);
};

class LayerTimes {
 public:
  LayerTimes(const RunShape& run, const Cluster& cluster);

  // `local`: its number in the chunk; which layers are recomputed may depend on it.
  void add_layer(int64_t layer, int64_t local, PartTimes& forward, PartTimes& backward) const;
  void add_embedding(PartTimes& forward, PartTimes& backward) const;
  void add_head(PartTimes& forward, PartTimes& backward) const;

 private:
  struct Both {
    PartTimes forward, backward;
  };
  // A matrix product of t rows and its two gradients; collectives that its backward hides are taken off.
  void add_product(Both& to, double rows, double out, double in, double hidden_by_input_grad = 0,
                   double hidden_by_weight_grad = 0) const;
  // Two of them with what tensor parallelism does around: up to `inner` columns and back.
  void add_branch(Both& to, double up, double down) const;
  Both attention(int64_t layer) const;
  Both self_attention(double window) const;
  Both latent_attention() const;
  Both delta_net() const;
  void add_core(Both& to, double window) const;
  Both mlp(double width, double up) const;
  Both experts() const;
  double moved(double bytes) const { return cluster_.memory_seconds(bytes); }

  const RunShape& run_;
  const Cluster& cluster_;
  const LayerSizes z_;
  const bool fp32_;
  const GroupSpeed tp_, cp_, ep_;
  Both mlp_, experts_, self_, latent_, delta_, norms_;  // self_: without a window
};

}  // namespace megalith::plan
