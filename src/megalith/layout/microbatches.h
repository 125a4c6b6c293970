// Computes the number of micro-batches per step, as the global batch size grows during training.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megalith/layout/step_schedule.h"

namespace megalith::layout {

// How the global batch size is chosen: constant, a ramp-up, or a step-wise schedule.
struct BatchPlan {
  int64_t micro_batch_size = 1;    // sequences that a rank runs at once
  int64_t data_parallel_size = 1;  // dense data-parallel size, cp not counted
  // Sequences per step. If unset: micro_batch_size * data_parallel_size, or the sizes of the schedule.
  std::optional<int64_t> global_batch_size;
  // start, increment, samples: from `start` to global_batch_size in equal steps over `samples` consumed samples.
  std::optional<std::vector<int64_t>> rampup_batch_size;
  // "0:768 250B:1536"; excludes global_batch_size, rampup_batch_size and decrease_batch_size_if_needed.
  std::optional<std::string> step_batch_size_schedule;
  std::optional<int64_t> seq_length;  // if set, the thresholds of the schedule are tokens
  // Runs the largest multiple of micro_batch_size * data_parallel_size within the batch instead of rejecting it.
  bool decrease_batch_size_if_needed = false;
};

// The sizes of a step.
struct BatchSizes {
  int64_t num_microbatches = 0;
  int64_t global_batch_size = 0;          // the size that the plan asks for
  int64_t running_global_batch_size = 0;  // the size that runs; smaller only with decrease_batch_size_if_needed
  bool operator==(const BatchSizes&) const = default;
};

// Returns every problem of the plan, each with what to do; empty if a MicrobatchCalculator can be built from it.
std::vector<std::string> problems(const BatchPlan& plan);

// Computes the sizes of a step from the number of samples consumed before it. Pure: the answer depends on that number
// alone, so a resumed run continues exactly as the interrupted one would have.
//
// Follows the reference in two details: the ramp step is int(consumed / (samples / increments)) in double arithmetic,
// and the full batch is used only strictly after `samples`. A ramp under decrease_batch_size_if_needed may start with 0
// micro-batches (golden microbatches.json); the caller has to reject that, or it will never consume a sample.
class MicrobatchCalculator {
 public:
  // Throws ConfigError listing every problem of the plan.
  explicit MicrobatchCalculator(BatchPlan plan);

  // The plan's own sizes: sequences per micro-batch, and ranks that share a step's samples.
  int64_t micro_batch_size() const { return plan_.micro_batch_size; }
  int64_t data_parallel_size() const { return plan_.data_parallel_size; }
  // Returns the batch size at the end of training.
  int64_t final_global_batch_size() const;

  // Returns the sizes after `consumed_samples`. Throws ConfigError if the batch size at that point is not a multiple of
  // micro_batch_size * data_parallel_size and may not be decreased.
  BatchSizes at(int64_t consumed_samples) const;
  // Does the same without that check: micro-batches are rounded down.
  BatchSizes unchecked_at(int64_t consumed_samples) const;

  // Returns the first number of consumed samples after `consumed_samples` at which the global batch size changes;
  // std::nullopt if it no longer changes.
  std::optional<int64_t> next_change(int64_t consumed_samples) const;
  // Returns the number of steps of a run over `samples` samples, as Megatron counts them: every step that starts before
  // the ramp ends and the samples run out, then the whole steps that fit into the rest.
  int64_t steps_of(int64_t samples) const;

 private:
  int64_t batch_size_at(int64_t consumed_samples) const;

  BatchPlan plan_;  // with global_batch_size filled in, except under a schedule
  std::optional<StepSchedule> schedule_;
};

}  // namespace megalith::layout
