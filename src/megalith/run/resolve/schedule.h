// Converts options to the schedule of learning rate and weight decay.
#pragma once

#include <cstdint>
#include <optional>

#include "megalith/config/training_arguments.h"
#include "megalith/layout/microbatches.h"
#include "megalith/optim/schedule/run_schedule.h"

namespace megalith::run {

// Returns the schedule that the arguments request; config::validate must have accepted them.
//
//   length      total_steps when given (the caller has counted epochs), else max_steps (train_iters), else
//               train_samples
//   unit        samples with Megatron's front end, and whenever a length is given in samples; otherwise optimizer
//               steps, as the adapter counts
//   shape       lr_decay_style when set, else lr_scheduler_type as the adapter maps it: constant_with_warmup is
//               constant, inverse_sqrt inverse-square-root, cosine_with_min_lr and cosine_warmup_with_min_lr cosine,
//               warmup_stable_decay WSD
//   groups      a second one with decoupled_lr
//   warm-up     lr_warmup_fraction of the decay length (may be fractional), lr_warmup_iters or lr_warmup_samples; else
//               warmup_steps (below 1 a fraction of all steps), else warmup_ratio of all steps, both rounded up to
//               steps
//   kwargs      max_lr, min_lr or min_lr_rate (times the peak), init_lr, lr_decay_steps, wsd_decay_steps
//               (num_decay_steps), lr_wsd_decay_style win over the options of the same meaning
//
// Lengths in steps are multiplied by the (final) global batch size where samples are counted. Throws ConfigError naming
// the options as they are written.
optim::RunSchedule make_schedule(const config::TrainingArguments& args, const layout::MicrobatchCalculator& batches,
                                 std::optional<int64_t> total_steps = std::nullopt);

}  // namespace megalith::run
