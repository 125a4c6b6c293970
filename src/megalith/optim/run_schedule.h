// RunSchedule: learning rates and weight decay over a whole run, and how its steps count.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "megalith/layout/microbatches.h"
#include "megalith/optim/param_scheduler.h"

namespace megalith::optim {

// What progress is counted in. With a constant batch size the curves are the same.
enum class ScheduleUnit { kSteps, kSamples };

struct RunSchedule {
  LrSchedule schedule;
  ScheduleUnit unit = ScheduleUnit::kSteps;
  int64_t train_iters = 0;  // optimizer steps of the run
  SchedulerLoad load = SchedulerLoad::kMustMatch;
  std::vector<RateGroup> groups{{}};  // the first is everybody's; a second one is that of embedding and head

  // What a step of this many samples adds to the progress.
  int64_t increment(int64_t samples_of_step) const { return unit == ScheduleUnit::kSamples ? samples_of_step : 1; }
  // The same with curves of a program's own, which count progress in the same unit. Throws ConfigError for a function
  // of the learning rate where embedding and head have rates of their own.
  RunSchedule with(RateFunctions functions) const;
};

// Makes the schedule of a run once its length in steps is known. Throws ConfigError.
using MakeSchedule = std::function<RunSchedule(const layout::MicrobatchCalculator& batches, int64_t total_steps)>;

}  // namespace megalith::optim
