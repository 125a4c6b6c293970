// The schedule of a run: where it stands, what each parameter group gets now, and how it is saved and resumed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/optim/lr_schedule.h"

namespace megalith::optim {

// What a checkpoint keeps. The first rate of the warm-up and length and style of WSD's last phase are not part of it.
struct SchedulerState {
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
  std::optional<WeightDecay> weight_decay;  // absent in old files
  bool operator==(const SchedulerState&) const = default;
};

// One JSON object with Megatron's keys (max_lr, lr_warmup_steps, num_steps, …).
std::string to_json_text(const SchedulerState& state);
// Reads it back; also Megatron's older keys start_lr, warmup_iter or warmup_steps, end_iter or decay_steps, decay_style
// and num_iters. Throws DataError naming `origin` (the file) and the key.
SchedulerState parse_scheduler_state(std::string_view json_text, const std::string& origin);

// What happens when the checkpoint's values are not those of the run.
enum class SchedulerLoad {
  kMustMatch,      // an error that names the value
  kOverride,       // override_opt_param_scheduler: the run's are kept
  kUseCheckpoint,  // use_checkpoint_opt_param_scheduler: the checkpoint's are taken
};
// From the two options; ConfigError when both are set.
SchedulerLoad scheduler_load(bool override_opt_param_scheduler, bool use_checkpoint_opt_param_scheduler);

// Megatron's OptimizerParamScheduler. The values of a group are those of the last step() or load(). One thread.
class ParamScheduler {
 public:
  // Throws ConfigError with every problem of the groups.
  ParamScheduler(LrSchedule schedule, std::vector<RateGroup> groups, SchedulerLoad mode = SchedulerLoad::kMustMatch);

  const LrSchedule& schedule() const { return schedule_; }
  size_t num_groups() const { return groups_.size(); }
  int64_t num_steps() const { return num_steps_; }
  double lr(size_t group) const { return current_.at(group).lr; }
  double weight_decay(size_t group) const { return current_.at(group).weight_decay; }

  // Goes on by `increment` >= 0: the samples of a step, or 1 where steps are counted.
  void step(int64_t increment);

  SchedulerState state() const;
  // Takes over a checkpoint's state by the mode. The stored progress is added to the present one, as in the reference.
  // Weight-decay values of the checkpoint hold from the next step() on, also as there. Values of a curve that a
  // function of the program's own replaces are not looked at. Throws ConfigError when a value differs under kMustMatch,
  // DataError when the checkpoint's values make no schedule; nothing is changed then.
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
  std::vector<Rates> current_;  // one a group
};

}  // namespace megalith::optim
