// What pre-training reads: numbered samples of equal length.
#pragma once

#include <cstdint>
#include <vector>

namespace megalith::data {

// s: tokens of a sample.
struct PretrainSample {
  std::vector<int64_t> tokens;              // [s]
  std::vector<int64_t> labels;              // [s] the token that follows each
  std::vector<float> loss_mask;             // [s] 1 where the label counts, else 0
  std::vector<int64_t> position_ids;        // [s]
  std::vector<int32_t> cumulative_lengths;  // [parts + 1] first 0, last s: attention stays inside of a part
  int32_t dataset = 0;                      // which one of a blend
  bool operator==(const PretrainSample&) const = default;
};

// Constant after construction; all functions may be called from several threads.
class PretrainDataset {
 public:
  virtual ~PretrainDataset() = default;
  virtual int64_t size() const = 0;
  // 0 <= index < size(). Throws DataError when the files turn out to be damaged.
  virtual PretrainSample sample(int64_t index) const = 0;
};

}  // namespace megalith::data
