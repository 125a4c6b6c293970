// ParamScheduler: the schedule of a run, with its progress, the current values of each parameter group, and saving and
// resuming.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/optim/schedule/lr_schedule.h"

namespace megalith::optim {

// The part of a schedule that checkpoints store. As in Megatron, they do not store the initial rate of the warm-up or
// the length and style of WSD's last phase.
struct SchedulerState {
  // The curve of the weight decay.
  struct WeightDecay {
    double start_wd = 0;
    double end_wd = 0;
    config::WeightDecayStyle wd_incr_style = config::WeightDecayStyle::kConstant;
    int64_t wd_incr_steps = 1;
    bool operator==(const WeightDecay&) const = default;
  };
  double max_lr = 0;
  double min_lr = 0;
  double lr_warmup_steps = 0;
  int64_t lr_decay_steps = 1;
  config::LrDecayStyle lr_decay_style = config::LrDecayStyle::kLinear;
  int64_t num_steps = 0;                    // progress
  std::optional<WeightDecay> weight_decay;  // std::nullopt when read from old files, which lack it
  bool operator==(const SchedulerState&) const = default;
};

// Writes one JSON object with Megatron's keys (max_lr, lr_warmup_steps, num_steps, …).
std::string to_json_text(const SchedulerState& state);
// Reads it back. Also accepts Megatron's older keys start_lr, warmup_iter or warmup_steps, end_iter or decay_steps,
// decay_style and num_iters. Throws a DataError that names `origin` (the file) and the key.
SchedulerState parse_scheduler_state(std::string_view json_text, const std::string& origin);

// The reaction to values of a checkpoint that differ from those of the run.
enum class SchedulerLoad {
  kMustMatch,      // throw an error that names the value
  kOverride,       // override_opt_param_scheduler: keep the run's values
  kUseCheckpoint,  // use_checkpoint_opt_param_scheduler: take the checkpoint's values
};
// Returns the mode that the two options select. Throws a ConfigError if both are set.
SchedulerLoad scheduler_load(bool override_opt_param_scheduler, bool use_checkpoint_opt_param_scheduler);

// Megatron's OptimizerParamScheduler. The values of a group are those of the last step() or load(). Not thread-safe.
class ParamScheduler {
 public:
  // Throws a ConfigError that lists every problem of the groups.
  ParamScheduler(LrSchedule schedule, std::vector<RateGroup> groups, SchedulerLoad mode = SchedulerLoad::kMustMatch);

  const LrSchedule& schedule() const { return schedule_; }
  // The groups, the progress, and the current values of each group.
  size_t num_groups() const { return groups_.size(); }
  int64_t num_steps() const { return num_steps_; }
  double lr(size_t group) const { return current_.at(group).lr; }
  double weight_decay(size_t group) const { return current_.at(group).weight_decay; }

  // Advances by `increment` >= 0: the number of samples in the step, or 1 if progress is counted in steps.
  void step(int64_t increment);

  // Returns the state for a checkpoint.
  SchedulerState state() const;
  // Loads a checkpoint's state according to the mode. As in Megatron, the stored progress is added to the current one,
  // and the checkpoint's weight-decay values take effect at the next step(). Values of a curve that a user-defined
  // function replaces are ignored. Throws a ConfigError if a value differs under kMustMatch, and a DataError if the
  // checkpoint's values do not form a valid schedule; nothing has changed then.
  void load(const SchedulerState& state);

 private:
  struct Rates {
    double lr;
    double weight_decay;
  };

  LrSchedule schedule_;
  std::vector<RateGroup> groups_;
  SchedulerLoad mode_;
  int64_t num_steps_ = 0;
  std::vector<Rates> current_;  // by group
};

}  // namespace megalith::optim
