// Computes the seconds that the parts of a model take on one rank for one micro-batch: the work that footprints state
// (nn/footprint/work_meter.h) at the speeds of a cluster.
#pragma once

#include <cstdint>

#include "megalith/model/footprint/model_footprint.h"
#include "megalith/plan/cluster.h"
#include "megalith/plan/step_time.h"

namespace megalith::plan {

// Seconds by kind of work; tp, cp and ep are exposed communication.
struct PartTimes {
  double gemm = 0, attention = 0, memory_bound = 0, recompute = 0, tp = 0, cp = 0, ep = 0;
  double total() const { return gemm + attention + memory_bound + recompute + tp + cp + ep; }
  // Adds part by part.
  PartTimes& operator+=(const PartTimes& other);
};

// Seconds of the two passes through one part.
struct PassTimes {
  PartTimes forward, backward;
};

// Speeds that all parts share: those of the cluster and of the groups in which layers communicate.
struct RankSpeeds {
  const Cluster& cluster;
  const nn::RankSizes& rank;
  GroupSpeed tp, cp, ep;

  // Returns the seconds of an operation that only moves `bytes`.
  double moved(double bytes) const { return cluster.memory_seconds(bytes); }
  // Adds a matrix product and its two gradients. `beside_…` are seconds of collectives that run concurrently with a
  // gradient; only the part that the gradient does not hide is added.
  void add_product(PassTimes& to, double rows, double out, double in, double beside_input_grad = 0,
                   double beside_weight_grad = 0) const;
  // Returns the slices in which tokens travel beside a product with so many results per token; 1 if they do not.
  int64_t slices(double columns) const;
  // Whether weight gradients wait for collectives to hide.
  bool holds_weight_grads() const;
  // Returns the seconds of a gather or scatter of all tokens [t, h] that its product [t, in] -> [t, out] does not hide.
  double exposed_beside(double out, double in) const;
};

// Adds up the times of layers of one model on one rank. Immutable after construction.
class LayerTimes {
 public:
  // Both must outlive it.
  LayerTimes(const model::ModelFootprint& model, const Cluster& cluster);

  // `local` is the number of the layer in its chunk, on which recomputation may depend.
  void add_layer(int64_t layer, int64_t local, PassTimes& to) const;
  // The look-up, and the head with its loss; each exists on one stage. Towers are beside the look-up; nothing is added
  // for a model without any.
  void add_embedding(PassTimes& to) const;
  void add_towers(PassTimes& to) const;
  void add_head(PassTimes& to) const;

 private:
  void add_tower(const nn::TowerFootprint& footprint, PassTimes& to) const;

  const model::ModelFootprint& model_;
  const RankSpeeds speeds_;
  PassTimes norms_;  // both norms of a layer
};

}  // namespace megalith::plan
