// Progress through a schedule, and its state in checkpoints.
//
// A checkpoint stores the parameters of the schedule beside the progress, because resuming with other parameters would
// bend the curve silently. load() merges the two sets value by value (SchedulerLoad says which side wins) before it
// changes anything. The reading half accepts every key that Megatron has ever written.
#include "megalith/optim/schedule/param_scheduler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/io/json_text.h"

namespace megalith::optim {
namespace {

// Formats a value as the user writes it.
template <typename T>
std::string shown(const T& value) {
  if constexpr (std::is_enum_v<T>)
    return std::string(config::choice_name(value));
  else
    return fmt::format("{}", value);
}

// Returns the value to use after loading.
template <typename T>
T merged(const T& own, const T& stored, SchedulerLoad mode, const char* name) {
  if (mode == SchedulerLoad::kOverride) return own;
  check<ConfigError>(mode == SchedulerLoad::kUseCheckpoint || own == stored,
                     "{} is {} here and {} in the checkpoint. Make them equal, or set override_opt_param_scheduler "
                     "(keep the value given here) or use_checkpoint_opt_param_scheduler (take the checkpoint's)",
                     name, shown(own), shown(stored));
  return stored;
}

// Learning-rate values. The names in messages list the options that may have set them.
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

// Weight decay, likewise; old files have none.
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

// Values from a file can contradict those of the run: a warm-up longer than the new decay, for instance.
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
  check<ConfigError>(found.empty(), "invalid schedule: {}", fmt::join(found, "\n"));
  step(0);  // sets the rates of the first step
}

// Values of all groups are computed once per step and read many times.
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
  // Values of a curve that a user-defined function replaces need not agree: the function alone defines the curve.
  const RateFunctions functions = schedule_.functions();
  const auto mode = [this](bool replaced) { return replaced ? SchedulerLoad::kOverride : mode_; };
  const ScheduleParams rates = merged_rates(schedule_.params(), state, mode(functions.lr != nullptr));
  const ScheduleParams both = merged_decay(rates, state, mode(functions.weight_decay != nullptr));
  check_stored(rates);
  check_stored(both);
  // Megatron's order, confirmed by golden data: rates, step, weight decay. So the first step after a resume still uses
  // the run's own weight decay.
  schedule_ = LrSchedule(rates, {}, functions);
  step(state.num_steps);
  schedule_ = LrSchedule(both, {}, functions);
}

namespace {

using io::Json;

constexpr double kLargestLength = 9e15;  // just below 2^53: whole numbers are exact in a double up to there

// Reads the fields of one object; every error names the file and the key.
class StateReader {
 public:
  StateReader(std::string_view text, const std::string& origin)
      : origin_(origin), object_(io::parse_json(text, origin)) {
    check<DataError>(object_.is_object(), "{}: the scheduler state is {}; expected an object", origin_,
                     io::json_in_words(object_));
  }

  bool has(const char* key) const { return object_.contains(key); }

  // Each takes several keys for the same value, oldest first, and reads the first that is present. The last is the
  // current one, which messages name.
  double number(std::initializer_list<const char*> keys) const {
    const char* key = present(keys);
    const Json& value = object_.at(key);
    check<DataError>(value.is_number() && std::isfinite(value.get<double>()),
                     "{}: \"{}\" of the scheduler state is {}; expected a finite number", origin_, key,
                     io::json_in_words(value));
    return value.get<double>();
  }

  int64_t whole(std::initializer_list<const char*> keys) const {
    const double value = number(keys);
    check<DataError>(value >= 0 && value <= kLargestLength && value == std::floor(value),
                     "{}: \"{}\" of the scheduler state is {}; expected a whole number from 0 to 9e15", origin_,
                     present(keys), value);
    return static_cast<int64_t>(value);
  }

  template <typename E>
  E choice(std::initializer_list<const char*> keys) const {
    const char* key = present(keys);
    const Json& value = object_.at(key);
    const std::optional<E> choice = value.is_string() ? config::choice_of<E>(value.get<std::string>()) : std::nullopt;
    if (choice) return *choice;
    std::string names;
    for (const auto& [item, name] : config::EnumNames<E>::kNames)
      names += (names.empty() ? "" : ", ") + std::string(name);
    throw DataError(fmt::format("{}: \"{}\" of the scheduler state is {}; expected one of {}", origin_, key,
                                io::json_in_words(value), names));
  }

 private:
  // Returns the first of the keys that the object has.
  const char* present(std::initializer_list<const char*> keys) const {
    for (const char* key : keys)
      if (has(key)) return key;
    throw DataError(fmt::format("{}: the scheduler state has no \"{}\"", origin_, *(keys.end() - 1)));
  }

  const std::string& origin_;
  Json object_;
};

// Writes whole numbers as 5 instead of 5.0, as Megatron does.
Json length_json(double length) {
  if (length == std::floor(length) && std::abs(length) <= kLargestLength) return static_cast<int64_t>(length);
  return length;
}

}  // namespace

std::string to_json_text(const SchedulerState& state) {
  Json json{{"max_lr", state.max_lr},
            {"lr_warmup_steps", length_json(state.lr_warmup_steps)},
            {"num_steps", state.num_steps},
            {"lr_decay_style", config::choice_name(state.lr_decay_style)},
            {"lr_decay_steps", state.lr_decay_steps},
            {"min_lr", state.min_lr}};
  if (state.weight_decay) {
    json["start_wd"] = state.weight_decay->start_wd;
    json["end_wd"] = state.weight_decay->end_wd;
    json["wd_incr_style"] = config::choice_name(state.weight_decay->wd_incr_style);
    json["wd_incr_steps"] = state.weight_decay->wd_incr_steps;
  }
  return json.dump();
}

// Files without start_wd predate scheduled weight decay; load() then keeps the run's own values.
SchedulerState parse_scheduler_state(std::string_view json_text, const std::string& origin) {
  const StateReader reader(json_text, origin);
  SchedulerState state;
  state.max_lr = reader.number({"start_lr", "max_lr"});
  state.min_lr = reader.number({"min_lr"});
  state.lr_warmup_steps = reader.number({"warmup_iter", "warmup_steps", "lr_warmup_steps"});
  state.lr_decay_steps = reader.whole({"end_iter", "decay_steps", "lr_decay_steps"});
  state.lr_decay_style = reader.choice<config::LrDecayStyle>({"decay_style", "lr_decay_style"});
  state.num_steps = reader.whole({"num_iters", "num_steps"});
  if (!reader.has("start_wd")) return state;
  state.weight_decay = SchedulerState::WeightDecay{
      .start_wd = reader.number({"start_wd"}),
      .end_wd = reader.number({"end_wd"}),
      .wd_incr_style = reader.choice<config::WeightDecayStyle>({"wd_incr_style"}),
      .wd_incr_steps = reader.whole({"wd_incr_steps"}),
  };
  return state;
}

}  // namespace megalith::optim
