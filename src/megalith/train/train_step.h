// One training step, as a list.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "megalith/data/batch_loader.h"
#include "megalith/train/faults/rerun_guard.h"
#include "megalith/train/report/metric_sums.h"
#include "megalith/train/step/microbatch_runner.h"
#include "megalith/train/step/optimized_model.h"
#include "megalith/train/stop_flag.h"

namespace megalith::train {

// Moments inside of a step; each may be empty.
struct StepEvents {
  std::function<void()> substep_end{};         // see BackwardPass
  std::function<void()> pre_optimizer_step{};  // gradients are complete
  std::function<void()> optimizer_step{};      // parameters are updated, or the update was skipped
};

// What a step came to; the same on every rank.
struct StepReport {
  // Per token: sum over the tokens of all ranks, and their number. Otherwise: the sum of the micro-batches' means, and
  // the number of micro-batches of all ranks. mean() is the loss of the step.
  MetricTotal loss;
  std::vector<MetricTotal> metrics;  // Objective::metrics_keys, then the attached losses, then routing_metrics
  UpdateResult update;
  int64_t tokens = 0;          // of all ranks, with padding
  int64_t real_tokens = 0;     // without
  int64_t trained_tokens = 0;  // with a label
  bool stop = false;           // some rank wishes to end
  double clock_seconds = 0;    // the mean of all ranks' clocks at the end of the step; its origin means nothing

  bool skipped() const { return !update.step.updated; }
};

// Collective over all ranks. `number`: of the step, from 1. `stop` is looked at when everything else is done; may be
// nullptr. `guard` decides whether forward and backward are run once or more; it may throw RerunExit, and nothing is
// updated then.
StepReport train_step(OptimizedModel& model, MicrobatchRunner& runner, RerunGuard& guard, const data::StepBatch& batch,
                      int64_t number, const StopFlag* stop, const StepEvents& events = {});

}  // namespace megalith::train
