// From the arguments of a run to its schedule.
#pragma once

#include <cstdint>
#include <optional>

#include "megalith/config/training_arguments.h"
#include "megalith/layout/microbatches.h"
#include "megalith/optim/param_scheduler.h"

namespace megalith::optim {

// What progress is counted in. Samples with Megatron's front end, and whenever a length is given in samples; optimizer
// steps otherwise, as the adapter does. With a constant batch size the curves are the same.
enum class ScheduleUnit { kSteps, kSamples };

struct RunSchedule {
  LrSchedule schedule;
  ScheduleUnit unit = ScheduleUnit::kSteps;
  int64_t train_iters = 0;  // optimizer steps of the run
  SchedulerLoad load = SchedulerLoad::kMustMatch;

  // The same with curves of a program's own, which count progress in the same unit.
  RunSchedule with(RateFunctions functions) const;
  // What a step of this many samples adds to the progress.
  int64_t increment(int64_t samples_of_step) const { return unit == ScheduleUnit::kSamples ? samples_of_step : 1; }
};

// The schedule that the arguments ask for; they must be ones that config::validate accepts.
//
//   length      total_steps when given (the caller has counted epochs), else max_steps (train_iters), else
//   train_samples shape       lr_decay_style when set, else lr_scheduler_type as the adapter maps it:
//   constant_with_warmup is constant,
//               inverse_sqrt inverse-square-root, cosine_with_min_lr and cosine_warmup_with_min_lr cosine,
//               warmup_stable_decay WSD
//   warm-up     lr_warmup_fraction of the decay length (may be fractional), lr_warmup_iters or lr_warmup_samples; else
//               warmup_steps (below 1 a fraction of all steps), else warmup_ratio of all steps, both rounded up to
//               steps
//   kwargs      max_lr, min_lr or min_lr_rate (times the peak), init_lr, lr_decay_steps, wsd_decay_steps
//               (num_decay_steps), lr_wsd_decay_style win over the options of the same meaning
//
// Lengths in steps are multiplied by the (final) global batch size where samples are counted. Throws ConfigError naming
// the options as they are written.
RunSchedule make_schedule(const config::TrainingArguments& args, const layout::MicrobatchCalculator& batches,
                          std::optional<int64_t> total_steps = std::nullopt);

// The group of embedding and head: decoupled_lr and decoupled_min_lr. Nothing when decoupled_lr is not set. Throws
// ConfigError when the rates do not fit together, or a function of the program's own gives the learning rate.
std::optional<RateGroup> decoupled_group(const config::OptimizerConfig& optimizer, const LrSchedule& schedule);

}  // namespace megalith::optim
