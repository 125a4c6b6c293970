// Batch sizes over a run. There are three plans: constant, a linear ramp-up in equal steps, and a list of thresholds
// (StepSchedule). All answers are pure functions of the number of consumed samples. A ramp is evaluated in doubles,
// with the rounding of the reference, so next_change() finds its boundaries by bisection instead of by a second formula
// that might round differently.
#include "megalith/layout/microbatches.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/layout/problem_list_internal.h"

namespace megalith::layout {
namespace {

using Problems = std::vector<std::string>;

// Products of two sizes then fit in 64 bits.
constexpr int64_t kLargestSize = int64_t{1} << 31;
constexpr int64_t kLargestSamples = 1'000'000'000'000'000;  // more than any run consumes; sums stay far from overflow

// Sequences of the smallest possible step: one micro-batch on every data-parallel rank.
int64_t step_unit(const BatchPlan& plan) { return plan.micro_batch_size * plan.data_parallel_size; }

// Returns "a multiple of micro_batch_size * data_parallel_size = 2 * 3 = 6, e.g. 6 or 12".
std::string multiples_near(const BatchPlan& plan, int64_t batch) {
  const int64_t unit = step_unit(plan);
  const int64_t below = batch / unit * unit;
  return fmt::format("a multiple of micro_batch_size * data_parallel_size = {} * {} = {}, e.g. {}{}",
                     plan.micro_batch_size, plan.data_parallel_size, unit,
                     below > 0 ? fmt::format("{} or ", below) : "", below + unit);
}

// Returns the message for a batch that cannot be cut into equal micro-batches, with the nearest that can.
std::string not_a_multiple(const BatchPlan& plan, int64_t batch) {
  return fmt::format("a global batch of {} is not {}; or set decrease_batch_size_if_needed", batch,
                     multiples_near(plan, batch));
}

void check_sizes(const BatchPlan& plan, Problems& out) {
  const auto look = [&](const char* what, int64_t value) {
    if (value < 1 || value > kLargestSize) {
      out.push_back(fmt::format("{} is {}; it must be a whole number from 1 to {}", what, value, kLargestSize));
    }
  };
  look("micro_batch_size", plan.micro_batch_size);
  look("data_parallel_size", plan.data_parallel_size);
  if (plan.global_batch_size) look("global_batch_size", *plan.global_batch_size);
}

// A schedule replaces the other ways to set the batch size.
void check_schedule(const BatchPlan& plan, Problems& out) {
  const auto excludes = [&](bool given, const char* what) {
    if (given) out.push_back(fmt::format("step_batch_size_schedule and {} exclude each other. Keep one", what));
  };
  excludes(plan.global_batch_size.has_value(), "global_batch_size");
  excludes(plan.rampup_batch_size.has_value(), "rampup_batch_size");
  excludes(plan.decrease_batch_size_if_needed, "decrease_batch_size_if_needed");
  try {
    // Parsed here for its errors alone; the calculator parses it again.
    StepSchedule::parse(*plan.step_batch_size_schedule, plan.seq_length);
  } catch (const ConfigError& e) {
    out.emplace_back(e.what());
  }
}

// The batch must be a positive multiple of the step unit, or be allowed to shrink to one.
void check_constant(const BatchPlan& plan, int64_t batch, Problems& out) {
  if (batch % step_unit(plan) != 0 && !plan.decrease_batch_size_if_needed) {
    out.push_back(not_a_multiple(plan, batch));
  } else if (batch < step_unit(plan)) {
    out.push_back(fmt::format("a global batch of {} leaves no micro-batch for every data-parallel rank. Use {}", batch,
                              multiples_near(plan, batch)));
  }
}

// A ramp goes from start to the global batch in whole increments.
void check_rampup(const BatchPlan& plan, int64_t batch, Problems& out) {
  const std::vector<int64_t>& ramp = *plan.rampup_batch_size;
  if (ramp.size() != 3) {
    out.push_back(
        fmt::format("rampup_batch_size has {} numbers; it needs three: start, increment, samples (e.g. 32 32 "
                    "100000)",
                    ramp.size()));
    return;
  }
  const int64_t start = ramp[0];
  const int64_t increment = ramp[1];
  const auto positive = [&](const char* what, int64_t value) {
    if (value < 1) out.push_back(fmt::format("the {} of rampup_batch_size is {}; it must be positive", what, value));
  };
  positive("start", start);
  positive("increment", increment);
  positive("number of samples", ramp[2]);
  if (start < 1 || increment < 1) return;
  if (start >= batch) {
    out.push_back(
        fmt::format("rampup_batch_size starts at {}, which is not below global_batch_size {}. Lower the start "
                    "or leave rampup_batch_size out",
                    start, batch));
  } else if ((batch - start) % increment != 0) {
    out.push_back(
        fmt::format("rampup_batch_size goes from {} to {} in steps of {}, which does not come out even. Use an "
                    "increment that divides {}",
                    start, batch, increment, batch - start));
  }
}

}  // namespace

std::vector<std::string> problems(const BatchPlan& plan) {
  Problems out;
  check_sizes(plan, out);
  if (!out.empty()) return out;
  const int64_t batch = plan.global_batch_size.value_or(step_unit(plan));
  if (plan.step_batch_size_schedule) {
    check_schedule(plan, out);
  } else if (plan.rampup_batch_size) {
    check_rampup(plan, batch, out);
  } else {
    check_constant(plan, batch, out);
  }
  return out;
}

// Without a global batch a step is one micro-batch per data-parallel rank, as in the reference.
MicrobatchCalculator::MicrobatchCalculator(BatchPlan plan) : plan_(std::move(plan)) {
  throw_if_any("impossible batch sizes", problems(plan_));
  if (plan_.step_batch_size_schedule) {
    schedule_ = StepSchedule::parse(*plan_.step_batch_size_schedule, plan_.seq_length);
  } else if (!plan_.global_batch_size) {
    plan_.global_batch_size = step_unit(plan_);
  }
}

int64_t MicrobatchCalculator::final_global_batch_size() const {
  return schedule_ ? schedule_->steps().back().global_batch_size : *plan_.global_batch_size;
}

// Thresholds of a schedule or steps of a ramp need not fit dp, which only shows when they come into force.
BatchSizes MicrobatchCalculator::at(int64_t consumed_samples) const {
  const BatchSizes sizes = unchecked_at(consumed_samples);
  if (!plan_.decrease_batch_size_if_needed && sizes.global_batch_size % step_unit(plan_) != 0) {
    throw ConfigError(
        fmt::format("after {} samples: {}", consumed_samples, not_a_multiple(plan_, sizes.global_batch_size)));
  }
  return sizes;
}

// The running batch is what a step really consumes: the batch itself, or what is left of it after rounding down.
BatchSizes MicrobatchCalculator::unchecked_at(int64_t consumed_samples) const {
  const int64_t batch = batch_size_at(consumed_samples);
  const int64_t microbatches = batch / step_unit(plan_);
  return {microbatches, batch, plan_.decrease_batch_size_if_needed ? microbatches * step_unit(plan_) : batch};
}

std::optional<int64_t> MicrobatchCalculator::next_change(int64_t consumed_samples) const {
  if (schedule_) {
    for (const StepSchedule::Step& step : schedule_->steps())
      if (step.from_samples > consumed_samples) return step.from_samples;
    return std::nullopt;
  }
  const int64_t now = batch_size_at(consumed_samples);
  if (!plan_.rampup_batch_size || now == final_global_batch_size()) return std::nullopt;
  // A ramp only grows and is complete after `samples`: bisect for the end of the current size.
  int64_t same = consumed_samples;
  int64_t other = std::min(plan_.rampup_batch_size->at(2), kLargestSamples) + 1;
  while (other - same > 1) {
    const int64_t middle = same + (other - same) / 2;
    if (batch_size_at(middle) == now)
      same = middle;
    else
      other = middle;
  }
  return other;
}

int64_t MicrobatchCalculator::steps_of(int64_t samples) const {
  int64_t ramp_end = -1;  // last number of consumed samples within the ramp
  if (schedule_) ramp_end = schedule_->steps().back().from_samples - 1;
  if (!schedule_ && plan_.rampup_batch_size) ramp_end = plan_.rampup_batch_size->at(2);
  // The ramp is counted stretch by stretch, and the constant rest by one division. The reference's rule holds for
  // both: a step counts if it starts at or before the end of the ramp, and after it only if it is complete.
  const int64_t last_start = std::min(ramp_end, samples);
  int64_t steps = 0;
  int64_t consumed = 0;
  // Adds all steps of one batch size at a time, so the cost depends on the number of sizes, not of steps.
  while (consumed <= last_start) {
    const int64_t batch = batch_size_at(consumed);
    const std::optional<int64_t> change = next_change(consumed);
    const int64_t last_of_size = change ? std::min(*change - 1, last_start) : last_start;
    const int64_t same_size = (last_of_size - consumed) / batch + 1;
    steps += same_size;
    consumed += same_size * batch;
  }
  return samples > consumed ? steps + (samples - consumed) / final_global_batch_size() : steps;
}

int64_t MicrobatchCalculator::batch_size_at(int64_t consumed_samples) const {
  if (schedule_) return schedule_->batch_size_at(consumed_samples);
  const int64_t full = *plan_.global_batch_size;
  if (!plan_.rampup_batch_size) return full;
  const int64_t start = plan_.rampup_batch_size->at(0);
  const int64_t increment = plan_.rampup_batch_size->at(1);
  const int64_t samples = plan_.rampup_batch_size->at(2);
  if (consumed_samples > samples) return full;
  const int64_t increments = (full - start) / increment;
  // Double arithmetic on purpose, as in the reference: it decides on which side of a boundary a sample count falls.
  const double samples_per_step = static_cast<double>(samples) / static_cast<double>(increments);
  const auto steps = static_cast<int64_t>(static_cast<double>(consumed_samples) / samples_per_step);
  return start + steps * increment;
}

}  // namespace megalith::layout
