// DatasetPicker: the order in which records are drawn from several datasets.
//
//   DatasetPicker picker(2, {.strategy = config::MixStrategy::kInterleaveUnder, .probabilities = {0.3, 0.7}});
//   while (const auto dataset = picker.next()) {
//     my_take(*dataset);
//     if (my_is_at_end(*dataset)) picker.exhausted(*dataset);
//   }
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/enums.h"
#include "megalith/data/random.h"

namespace megalith::data {

// How several datasets are mixed. config::MixStrategy names the strategies listed below.
struct MixOptions {
  config::MixStrategy strategy = config::MixStrategy::kConcat;
  std::vector<double> probabilities;  // one per dataset; if empty, datasets take turns
  uint64_t seed = 42;
};

// Parses "0.3, 0.7" of the command line and normalizes the numbers to a sum of 1. Throws a ConfigError that names
// interleave_probs unless there is one positive number per dataset, or none.
std::vector<double> parse_probabilities(const std::vector<std::string>& words, size_t datasets);

// Decides from which dataset the next record comes. The caller reports when it has taken the last record of a dataset;
// if that is drawn again (interleave_over), it starts from its first record.
//
//   concat            one dataset after the other
//   interleave_under  until the first one is exhausted
//   interleave_over   until all are exhausted; shorter ones repeat
//   interleave_once   until all are exhausted; exhausted ones are skipped
//
// If datasets take turns (no probabilities), a round is always completed.
class DatasetPicker {
 public:
  // Draws depend only on the seed and on the calls of exhausted(), so all ranks that read alike pick alike.
  DatasetPicker(size_t datasets, const MixOptions& options);
  // Returns the number of the dataset; std::nullopt at the end.
  std::optional<size_t> next();
  // Reports that the last record of a dataset has been taken.
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
