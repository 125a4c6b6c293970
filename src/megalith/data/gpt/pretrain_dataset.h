// PretrainDataset: numbered samples of equal length, for pre-training.
#pragma once

#include <cstdint>
#include <vector>

namespace megalith::data {

// One sample; s is its number of tokens. All vectors but cumulative_lengths have the same length in every sample of a
// dataset.
struct PretrainSample {
  std::vector<int64_t> tokens;              // [s]
  std::vector<int64_t> labels;              // [s] the next token
  std::vector<float> loss_mask;             // [s] 1 if the label counts, otherwise 0
  std::vector<int64_t> position_ids;        // [s]
  std::vector<int32_t> cumulative_lengths;  // [parts + 1] from 0 to s: tokens attend only within their part
  int32_t dataset = 0;                      // index of the dataset in a blend
  bool operator==(const PretrainSample&) const = default;
};

// Immutable and thread-safe. A GptDataset or a blend of them.
class PretrainDataset {
 public:
  virtual ~PretrainDataset() = default;
  // Returns the number of samples.
  virtual int64_t size() const = 0;
  // Requires 0 <= index < size(). Throws a DataError if a file turns out to be damaged.
  virtual PretrainSample sample(int64_t index) const = 0;
};

}  // namespace megalith::data
