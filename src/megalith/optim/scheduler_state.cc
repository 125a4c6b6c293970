// The scheduler's state as JSON.
#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/io/json_text.h"
#include "megalith/optim/param_scheduler.h"

namespace megalith::optim {
namespace {

using io::Json;

constexpr double kLargestLength = 9e15;  // whole numbers are exact in a double up to here

// The fields of one object; every error names file and key.
class StateReader {
 public:
  StateReader(std::string_view text, const std::string& origin)
      : origin_(origin), object_(io::parse_json(text, origin)) {
    check<DataError>(object_.is_object(), "{}: the scheduler state is {}; expected an object", origin_,
                     io::json_in_words(object_));
  }

  bool has(const char* key) const { return object_.contains(key); }

  // Of several keys for the same thing the first that is there; the last is the one of today.
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
    const std::optional<E> found = value.is_string() ? config::choice_of<E>(value.get<std::string>()) : std::nullopt;
    if (found) return *found;
    std::string names;
    for (const auto& [item, name] : config::EnumNames<E>::kNames)
      names += (names.empty() ? "" : ", ") + std::string(name);
    throw DataError(fmt::format("{}: \"{}\" of the scheduler state is {}; expected one of {}", origin_, key,
                                io::json_in_words(value), names));
  }

 private:
  const char* present(std::initializer_list<const char*> keys) const {
    for (const char* key : keys)
      if (has(key)) return key;
    throw DataError(fmt::format("{}: the scheduler state has no \"{}\"", origin_, *(keys.end() - 1)));
  }

  const std::string& origin_;
  Json object_;
};

// 5 in place of 5.0 where the number is whole, as the reference writes it.
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
