// MetricSums: weighted means over micro-batches and ranks, with one collective and one read from the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "megalith/parallel/parallel_context.h"

namespace megalith::train {

// Σ sum and Σ weight of one name.
struct MetricTotal {
  std::string name;
  double sum = 0;
  double weight = 0;

  double mean() const { return weight == 0 ? 0 : sum / weight; }
  void add(const MetricTotal& other) {
    sum += other.sum;
    weight += other.weight;
  }
};

// One thread a rank.
class MetricSums {
 public:
  // The same names in the same order on all ranks.
  explicit MetricSums(std::vector<std::string> names);

  // Numbers are kept as they are: nothing waits for the device before reduce(). Throws InternalError for a name that
  // was not announced.
  void add(const std::string& name, const at::Tensor& sum, double weight);
  void add(const std::string& name, double sum, double weight);

  // Collective over all ranks of the context: what everybody has added, summed up in fp64, in the order of the names.
  // Values that several ranks hold alike are added by one of them only; that is the caller's business.
  std::vector<MetricTotal> reduce(const parallel::ParallelContext& context, const char* label) const;

 private:
  struct Column {
    std::string name;
    std::vector<at::Tensor> pending;  // scalars, wherever they are
    double sum = 0;
    double weight = 0;
  };
  Column& column(const std::string& name);

  std::vector<Column> columns_;
};

}  // namespace megalith::train
