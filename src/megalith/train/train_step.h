// One training step, written down as a list.
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

// Hooks inside a step; each may be empty. Called on the rank's own thread, on every rank.
struct StepEvents {
  std::function<void()> substep_end{};         // see BackwardPass
  std::function<void()> pre_optimizer_step{};  // gradients are complete and reduced
  std::function<void()> optimizer_step{};      // parameters are updated, or the update was skipped
};

// The results of a step; the same on every rank.
struct StepReport {
  // Per token: the sum over the tokens of all ranks and their number. Otherwise: the sum of the micro-batches' means
  // and the number of micro-batches of all ranks. mean() is the loss of the step in both cases.
  MetricTotal loss;
  std::vector<MetricTotal> metrics;  // Objective::metrics_keys, then the attached losses, then routing_metrics
  UpdateResult update;
  int64_t tokens = 0;          // on all ranks, with padding
  int64_t real_tokens = 0;     // on all ranks, without padding
  int64_t trained_tokens = 0;  // on all ranks, with a label
  int64_t media = 0;           // images and videos, on all ranks
  int64_t sounds = 0;          // on all ranks
  int64_t media_tokens = 0;    // tokens that stand for images, videos and sounds; a part of real_tokens
  double tower_flops = 0;      // work of the towers on all ranks; 0 without images and sounds
  bool stop = false;           // some rank has requested a stop
  double clock_seconds = 0;    // mean of all ranks' clocks at the end of the step; only differences have a meaning

  // Whether the parameters were left as they were, because a gradient was not finite.
  bool skipped() const { return !update.step.updated; }
};

// Runs step `number` (from 1) on `batch`. Collective over all ranks. `guard` decides whether forward and backward run
// once or several times; it may throw RerunExit, and then nothing is updated. `stop`, which may be nullptr, is read
// before the update.
StepReport train_step(OptimizedModel& model, MicrobatchRunner& runner, RerunGuard& guard, const data::StepBatch& batch,
                      int64_t number, const StopFlag* stop, const StepEvents& events = {});

}  // namespace megalith::train
