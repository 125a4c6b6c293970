// StepTotals: every number of a step that ranks have to agree on, in one all-reduce and one read.
//
//   | veto | terms of the gradient norm | sums and weights of the metrics | tokens of each expert |
//                                                                              fp64, summed over the world
//
// The vector is complete before the update, and the update is queued behind it: the device derives from it whether to
// update at all and by how much to clip, on all ranks alike. The host reads it once, while the device updates, and
// learns the same facts for the report, the loss scale and the rerun machine.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "megalith/ops/kernel/host_values.h"
#include "megalith/optim/grad_norm.h"
#include "megalith/train/report/metric_sums.h"

namespace megalith::train {

// One thread per rank.
class StepTotals {
 public:
  // This rank's share.
  struct Share {
    at::Tensor veto;   // fp64 [1]: more than 0 if this rank's results must not change the parameters
    at::Tensor terms;  // optim::norm_terms
    MetricSums metrics;
    at::Tensor loads;  // fp64 [layers, E]: expert_loads(); undefined for a model without experts
  };

  // Adds up the shares of all ranks and queues the copy to the host. Collective over the world. Does not wait for the
  // device.
  StepTotals(Share share, const parallel::ParallelContext& context);

  // Returns the sum of all squared gradients for Optimizer::begin_step, NaN if a rank vetoes. Does not wait.
  at::Tensor squares() const;
  // Returns the tokens of each expert over all ranks, fp64 [layers, E]; undefined if the share has none. Does not wait.
  at::Tensor loads() const;

  // These wait for the device when the first of them is called.
  bool vetoed() const;  // some rank vetoes
  optim::GradStats stats() const;
  std::vector<MetricTotal> metrics() const;
  at::Tensor loads_on_host() const;

 private:
  std::span<const double> part(int64_t begin, int64_t end) const;
  int64_t load_numel() const;
  at::Tensor loads_in(const at::Tensor& all) const;

  const MetricSums names_;
  const int64_t terms_end_;                // the metrics begin here
  const std::vector<int64_t> load_sizes_;  // sizes of the loads, the last part; empty without experts
  const at::Tensor summed_;
  const ops::HostTensor host_;
};

}  // namespace megalith::train
