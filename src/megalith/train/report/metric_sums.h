// MetricSums: weighted means over micro-batches and ranks, with one collective and one read from the device.
//
//   MetricSums sums({"loss", "accuracy"});                // the same names on all ranks
//   for (…) sums.add("loss", my_loss, tokens);            // tensors stay on the device
//   for (const MetricTotal& total : sums.reduce(context, "step")) report(total.name, total.mean());
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <string>
#include <vector>

#include "megalith/parallel/parallel_context.h"

namespace megalith::train {

// Σ sum and Σ weight under one name.
struct MetricTotal {
  std::string name;
  double sum = 0;
  double weight = 0;

  // Returns 0 without weight: a metric that nobody reported.
  double mean() const { return weight == 0 ? 0 : sum / weight; }
  // Adds sums and weights; the name stays.
  void add(const MetricTotal& other) {
    sum += other.sum;
    weight += other.weight;
  }
};

// Collects the sums of one step or evaluation. One thread per rank. Announcing all names in advance is what lets one
// collective of fixed size carry everything.
class MetricSums {
 public:
  // `names` must be the same, in the same order, on all ranks.
  explicit MetricSums(std::vector<std::string> names);

  // Adds to a name. Tensors are kept as they are: nothing waits for the device before reduce(). Throws InternalError
  // for a name that was not announced.
  void add(const std::string& name, const at::Tensor& sum, double weight);
  void add(const std::string& name, double sum, double weight);

  // Returns what all ranks have added, summed in fp64, in the order of the names. Collective over all ranks of the
  // context. A value that several ranks hold must be added by only one of them; that is the caller's duty.
  std::vector<MetricTotal> reduce(const parallel::ParallelContext& context, const char* label) const;

  // The same in parts, for a caller that lets the sums travel together with other numbers. collect() returns what this
  // rank has added, fp64 [2 · names] on `device`, without waiting for it; totals() reads such numbers, added up over
  // all ranks, in the host's memory.
  at::Tensor collect(at::Device device) const;
  std::vector<MetricTotal> totals(std::span<const double> summed) const;

 private:
  struct Column {
    std::string name;
    std::vector<at::Tensor> pending;  // scalars, on any device
    double sum = 0;
    double weight = 0;
  };
  Column& column(const std::string& name);

  std::vector<Column> columns_;
};

}  // namespace megalith::train
