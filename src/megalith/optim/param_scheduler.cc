#include "megalith/optim/param_scheduler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <limits>
#include <type_traits>
#include <utility>

#include "megalith/base/error.h"

namespace megalith::optim {
namespace {

template <typename T>
std::string shown(const T& value) {
  if constexpr (std::is_enum_v<T>)
    return std::string(config::choice_name(value));
  else
    return fmt::format("{}", value);
}

// The value that holds after loading.
template <typename T>
T merged(const T& own, const T& stored, SchedulerLoad mode, const char* name) {
  if (mode == SchedulerLoad::kOverride) return own;
  check<ConfigError>(mode == SchedulerLoad::kUseCheckpoint || own == stored,
                     "{} is {} here and {} in the checkpoint. Make them equal, or set override_opt_param_scheduler "
                     "(keep the value given here) or use_checkpoint_opt_param_scheduler (take the checkpoint's)",
                     name, shown(own), shown(stored));
  return stored;
}

ScheduleParams merged_rates(const ScheduleParams& own, const SchedulerState& state, SchedulerLoad mode) {
  ScheduleParams params = own;
  params.max_lr = merged(own.max_lr, state.max_lr, mode, "max_lr (lr, learning_rate)");
  params.min_lr = merged(own.min_lr, state.min_lr, mode, "min_lr");
  params.lr_warmup_steps = merged(own.lr_warmup_steps, state.lr_warmup_steps, mode, "lr_warmup_steps (the warm-up)");
  params.lr_decay_steps =
      merged(own.lr_decay_steps, state.lr_decay_steps, mode, "lr_decay_steps (the decay length, also of the run)");
  params.lr_decay_style =
      merged(own.lr_decay_style, state.lr_decay_style, mode, "lr_decay_style (also lr_scheduler_type)");
  return params;
}

ScheduleParams merged_decay(const ScheduleParams& own, const SchedulerState& state, SchedulerLoad mode) {
  if (!state.weight_decay) return own;
  ScheduleParams params = own;
  const SchedulerState::WeightDecay& stored = *state.weight_decay;
  params.start_wd = merged(own.start_wd, stored.start_wd, mode, "start_wd (start_weight_decay, weight_decay)");
  params.end_wd = merged(own.end_wd, stored.end_wd, mode, "end_wd (end_weight_decay, weight_decay)");
  params.wd_incr_steps = merged(own.wd_incr_steps, stored.wd_incr_steps, mode, "wd_incr_steps (the length of the run)");
  params.wd_incr_style =
      merged(own.wd_incr_style, stored.wd_incr_style, mode, "wd_incr_style (weight_decay_incr_style)");
  return params;
}

void check_stored(const ScheduleParams& params) {
  const std::vector<std::string> found = problems(params);
  check<DataError>(found.empty(), "the checkpoint's scheduler state cannot be used: {}", fmt::join(found, "\n"));
}

}  // namespace

SchedulerLoad scheduler_load(bool override_opt_param_scheduler, bool use_checkpoint_opt_param_scheduler) {
  check<ConfigError>(
      !override_opt_param_scheduler || !use_checkpoint_opt_param_scheduler,
      "override_opt_param_scheduler and use_checkpoint_opt_param_scheduler exclude each other; keep one");
  if (override_opt_param_scheduler) return SchedulerLoad::kOverride;
  return use_checkpoint_opt_param_scheduler ? SchedulerLoad::kUseCheckpoint : SchedulerLoad::kMustMatch;
}

ParamScheduler::ParamScheduler(LrSchedule schedule, std::vector<RateGroup> groups, SchedulerLoad mode)
    : schedule_(std::move(schedule)), groups_(std::move(groups)), mode_(mode), current_(groups_.size()) {
  std::vector<std::string> found;
  for (size_t i = 0; i < groups_.size(); ++i)
    for (std::string& problem : problems(schedule_.params(), groups_[i], fmt::format("parameter group {}", i)))
      found.push_back(std::move(problem));
  check<ConfigError>(found.empty(), "the schedule cannot be: {}", fmt::join(found, "\n"));
  step(0);
}

void ParamScheduler::step(int64_t increment) {
  check(increment >= 0, "a step of {} would go back", increment);
  check(increment <= std::numeric_limits<int64_t>::max() - num_steps_, "progress {} + {} is too large", num_steps_,
        increment);
  num_steps_ += increment;
  for (size_t i = 0; i < groups_.size(); ++i)
    current_[i] = {schedule_.lr(num_steps_, groups_[i]), schedule_.weight_decay(num_steps_, groups_[i])};
}

SchedulerState ParamScheduler::state() const {
  const ScheduleParams& params = schedule_.params();
  return {.max_lr = params.max_lr,
          .min_lr = params.min_lr,
          .lr_warmup_steps = params.lr_warmup_steps,
          .lr_decay_steps = params.lr_decay_steps,
          .lr_decay_style = params.lr_decay_style,
          .num_steps = num_steps_,
          .weight_decay =
              SchedulerState::WeightDecay{params.start_wd, params.end_wd, params.wd_incr_style, params.wd_incr_steps}};
}

void ParamScheduler::load(const SchedulerState& state) {
  check<DataError>(state.num_steps >= 0 && state.num_steps <= std::numeric_limits<int64_t>::max() - num_steps_,
                   "the checkpoint's scheduler state has num_steps {}; it must be a number of steps or samples",
                   state.num_steps);
  const ScheduleParams rates = merged_rates(schedule_.params(), state, mode_);
  const ScheduleParams both = merged_decay(rates, state, mode_);
  check_stored(rates);
  check_stored(both);
  // The order of the reference, which golden data shows: rates, step, weight decay.
  schedule_ = LrSchedule(rates);
  step(state.num_steps);
  schedule_ = LrSchedule(both);
}

}  // namespace megalith::optim
