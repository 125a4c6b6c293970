// RunSchedule: learning rates and weight decay over a whole run, and how its steps count.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "megalith/layout/microbatches.h"
#include "megalith/optim/schedule/param_scheduler.h"

namespace megalith::optim {

// The unit of progress: optimizer steps or samples. With a constant batch size the curves are the same.
enum class ScheduleUnit { kSteps, kSamples };

// A schedule together with the facts about the run that it needs. Made once per run, by the options or by a program,
// before the optimizer exists.
struct RunSchedule {
  LrSchedule schedule;
  ScheduleUnit unit = ScheduleUnit::kSteps;
  int64_t train_iters = 0;  // optimizer steps of the run
  SchedulerLoad load = SchedulerLoad::kMustMatch;
  std::vector<RateGroup> groups{{}};  // the first is the default; a second one is for embedding and head

  // Returns the progress made by a step of this many samples.
  int64_t increment(int64_t samples_of_step) const { return unit == ScheduleUnit::kSamples ? samples_of_step : 1; }
  // Returns a copy with user-defined curves, which count progress in the same unit. Throws a ConfigError if a
  // learning-rate function is given although embedding and head have their own rates.
  RunSchedule with(RateFunctions functions) const;
};

// Makes the schedule of a run once its length in steps is known. May throw a ConfigError.
using MakeSchedule = std::function<RunSchedule(const layout::MicrobatchCalculator& batches, int64_t total_steps)>;

}  // namespace megalith::optim
