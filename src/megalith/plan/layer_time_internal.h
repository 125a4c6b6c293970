// Seconds of the parts of a model on one rank and one micro-batch: what footprints state as work (nn/footprint/
// work_meter.h), at the speeds of a cluster.
#pragma once

#include <cstdint>

#include "megalith/model/footprint/model_footprint.h"
#include "megalith/plan/cluster.h"
#include "megalith/plan/step_time.h"

namespace megalith::plan {

struct PartTimes {
  double gemm = 0, attention = 0, memory_bound = 0, recompute = 0, tp = 0, cp = 0, ep = 0;
  double total() const { return gemm + attention + memory_bound + recompute + tp + cp + ep; }
  PartTimes& operator+=(const PartTimes& other);
};

struct PassTimes {
  PartTimes forward, backward;
};

// What all parts share: the cluster's speeds, and those of the groups that layers communicate in.
struct RankSpeeds {
  const Cluster& cluster;
  const nn::RankSizes& rank;
  GroupSpeed tp, cp, ep;

  double moved(double bytes) const { return cluster.memory_seconds(bytes); }
  // A matrix product and its two gradients; seconds of collectives that run beside the gradients are added as far as
  // these do not hide them.
  void add_product(PassTimes& to, double rows, double out, double in, double beside_input_grad = 0,
                   double beside_weight_grad = 0) const;
};

class LayerTimes {
 public:
  // Both outlive it.
  LayerTimes(const model::ModelFootprint& model, const Cluster& cluster);

  // `local`: its number in the chunk; which layers are recomputed may depend on it.
  void add_layer(int64_t layer, int64_t local, PassTimes& to) const;
  void add_embedding(PassTimes& to) const;
  void add_head(PassTimes& to) const;

 private:
  const model::ModelFootprint& model_;
  const RankSpeeds speeds_;
  PassTimes norms_;  // of a layer
};

}  // namespace megalith::plan
