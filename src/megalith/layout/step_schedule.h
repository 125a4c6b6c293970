// Step-wise batch-size schedules: "0:768 250B:1536".
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace megalith::layout {

// A global batch size for each section of training.
//
// Written as THRESHOLD:BATCH pairs, separated by blanks or commas. Numbers take a suffix K, M, B or T (10^3, 10^6,
// 10^9, 10^12, either case) and may have a fraction if the result is whole (1.5K). With a sequence length the
// thresholds are tokens, and tokens / seq_length, rounded down, are samples; without one they are samples.
//
// Invariant: the first threshold is 0 samples, thresholds increase strictly (in samples), batch sizes are positive.
// Unlike the reference, which sorts the pairs, this treats pairs out of order as the typing error they are.
class StepSchedule {
 public:
  struct Step {
    int64_t from_samples;  // in force from this number of consumed samples on
    int64_t global_batch_size;
  };

  // Throws ConfigError naming the faulty entry.
  static StepSchedule parse(std::string_view text, std::optional<int64_t> seq_length);

  // Thresholds ascending, the first at 0.
  const std::vector<Step>& steps() const { return steps_; }
  // Returns the batch size in force after `consumed_samples`.
  int64_t batch_size_at(int64_t consumed_samples) const;

 private:
  explicit StepSchedule(std::vector<Step> steps) : steps_(std::move(steps)) {}
  std::vector<Step> steps_;
};

}  // namespace megalith::layout
