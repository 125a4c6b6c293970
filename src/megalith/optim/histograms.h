// Histograms of weights and gradients, layer by layer, the same in every layout.
//
// Bins need no look at the values beforehand: each power of two is cut into four, for both signs. The bin of a value is
// a part of its bits (sign, exponent and two bits of the fraction), so counting is one pass, and counts of ranks that
// hold different parts of the model are added as integers.
//
//   bin i holds magnitudes from 2^e · (1 + q/4) up to the next bin's, with e = floor(i / 4) and q = i mod 4:
//   bin -1 [0.875, 1)   bin 0 [1, 1.25)   bin 1 [1.25, 1.5)   …   bin 4 [2, 2.5)
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "megalith/optim/optimizer_state.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::optim {

// Consecutive bins from `first` on; neither the first nor the last count is 0.
struct BinCounts {
  int first = 0;
  std::vector<int64_t> counts;
  bool operator==(const BinCounts&) const = default;
};

// Returns the smallest magnitude in bin i.
double bin_edge(int i);

struct Histogram {
  int64_t zeros = 0;       // with subnormal numbers, below 1.2e-38
  int64_t non_finite = 0;  // NaN and infinities
  BinCounts negative, positive;
  int64_t total() const;
  bool operator==(const Histogram&) const = default;
};

// A part of a layer ("layers.3.attention"), or another part of the model ("embedding").
struct PartHistograms {
  std::string name;
  Histogram weights, gradients;
  bool operator==(const PartHistograms&) const = default;
};

// The trained parameters of the whole model before an update, and the gradients of that update, before clipping and
// without the loss scale. In the order of the model.
struct Histograms {
  std::vector<PartHistograms> parts;
  bool operator==(const Histograms&) const = default;
};

// Counts that the device may still be computing.
class ValueCounts {
 public:
  ValueCounts(std::vector<std::string> names, at::Tensor counts)
      : names_(std::move(names)), counts_(std::move(counts)) {}
  // Copies the counts to the host, all at once; waits for the device.
  Histograms read() const;

 private:
  std::vector<std::string> names_;
  at::Tensor counts_;  // int64 [2, parts, bins]: weights, gradients
};

// Used by one thread per rank. The blocks and the context outlive it.
class HistogramCounter {
 public:
  // Agrees with the other ranks on the parts of the model. `blocks` and `sharded` are as in grad_norm.h. Collective
  // over all ranks.
  HistogramCounter(const std::vector<StateBlock>& blocks, bool sharded, const parallel::ParallelContext& context);

  // Counts the elements for which this rank stands, and adds the counts of all ranks.
  // Gradients are complete and still multiplied by `loss_scale`. The host does not wait for the device. Takes about
  // 20 MiB for a million elements at a time, and 32 KiB per part. Collective over all ranks.
  ValueCounts count(double loss_scale) const;

 private:
  size_t part_of(const std::string& tensor) const;
  void add(const StateBlock& block, double loss_scale, const at::Tensor& counts, const at::Tensor& ones) const;

  const std::vector<StateBlock>& blocks_;
  const bool sharded_;
  const parallel::ParallelContext& context_;
  std::vector<std::string> names_;
};

}  // namespace megalith::optim
