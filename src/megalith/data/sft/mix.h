// The order in which several datasets are drawn from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/choices.h"
#include "megalith/data/random.h"

namespace megalith::data {

struct MixOptions {
  config::MixStrategy strategy = config::MixStrategy::kConcat;
  std::vector<double> probabilities;  // one a dataset, or none: in turn
  uint64_t seed = 42;
};

// "0.3, 0.7" of the command line as numbers that sum to 1. Throws ConfigError, naming interleave_probs, for anything
// but one positive number a dataset.
std::vector<double> parse_probabilities(const std::vector<std::string>& words, size_t datasets);

// Says from which dataset the next record comes. Its caller tells when a dataset's last record was taken; one that is
// drawn again afterwards (interleave_over) starts anew.
//
//   concat            one behind the other
//   interleave_under  until the first is exhausted
//   interleave_over   until all are; shorter ones repeat
//   interleave_once   until all are; exhausted ones are passed over
//
// In turn (no probabilities) a round is always completed.
class DatasetPicker {
 public:
  DatasetPicker(size_t datasets, const MixOptions& options);
  // Nothing at the end.
  std::optional<size_t> next();
  void exhausted(size_t dataset);

 private:
  bool ended() const;
  size_t draw();

  MixOptions options_;
  std::vector<bool> exhausted_;
  size_t turn_ = 0;
  RandomStream random_;
};

}  // namespace megalith::data
