// Three vocabularies describe one schedule: Megatron's options, Hugging Face's scheduler names, and
// lr_scheduler_kwargs. ScheduleMaker decides each parameter in turn, kwargs first, and remembers which option it came
// from, so that an error can name the option as the user wrote it. Lengths are converted to one unit, steps or samples,
// as they are read.
#include "megalith/run/resolve/schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::run {
namespace {

using config::HfScheduler;
using config::LrDecayStyle;
using config::ScheduleConfig;
using config::TrainingArguments;
using optim::LrSchedule;
using optim::RateGroup;
using optim::RunSchedule;
using optim::ScheduleNames;
using optim::ScheduleParams;
using optim::ScheduleUnit;

constexpr int64_t kLongest = 1'000'000'000'000'000;  // steps or samples: no run is longer, and products do not overflow

// A length in progress units, with the option that it comes from.
struct Length {
  int64_t value;
  std::string name;
};

// Hugging Face's variants with a floor differ from plain cosine in min_lr alone, which set_rates() reads.
LrDecayStyle style_of(HfScheduler scheduler) {
  switch (scheduler) {
    case HfScheduler::kLinear:
      return LrDecayStyle::kLinear;
    case HfScheduler::kCosine:
    case HfScheduler::kCosineMinLr:
    case HfScheduler::kCosineWarmupMinLr:
      return LrDecayStyle::kCosine;
    case HfScheduler::kConstant:
    case HfScheduler::kConstantWithWarmup:
      return LrDecayStyle::kConstant;
    case HfScheduler::kInverseSqrt:
      return LrDecayStyle::kInverseSquareRoot;
    case HfScheduler::kWsd:
      return LrDecayStyle::kWsd;
  }
  throw InternalError("a scheduler without a style");
}

// Samples if any length is given in samples, or with Megatron's front end; otherwise optimizer steps. Megatron counts
// samples because a step's batch may grow; Hugging Face counts steps.
ScheduleUnit unit_of(const TrainingArguments& args) {
  const ScheduleConfig& schedule = args.schedule;
  const bool in_samples = args.run.train_samples || schedule.lr_decay_samples || schedule.lr_warmup_samples > 0 ||
                          schedule.lr_wsd_decay_samples;
  return in_samples || args.dialect == config::Dialect::kPretrain ? ScheduleUnit::kSamples : ScheduleUnit::kSteps;
}

// Reads lr_scheduler_kwargs; validate() has checked that the keys are known and that numbers are numbers.
class ScheduleKwargs {
 public:
  explicit ScheduleKwargs(const ScheduleConfig& schedule)
      : object_(nlohmann::json::parse(schedule.lr_scheduler_kwargs.text)) {}

  bool has(const char* key) const { return object_.contains(key); }
  // Returns the key as messages name it.
  static std::string name(const char* key) { return fmt::format("{} of lr_scheduler_kwargs", key); }

  std::optional<double> number(const char* key) const {
    if (!has(key)) return std::nullopt;
    check<ConfigError>(object_.at(key).is_number(), "{} is {}; expected a number", name(key), object_.at(key).dump());
    return object_.at(key).get<double>();
  }

  // Returns a number of optimizer steps.
  std::optional<int64_t> steps(const char* key) const {
    const std::optional<double> value = number(key);
    if (!value) return std::nullopt;
    check<ConfigError>(*value >= 1 && *value <= static_cast<double>(kLongest) && *value == std::floor(*value),
                       "{} is {}; expected a whole number of steps from 1 to {}", name(key), *value, kLongest);
    return static_cast<int64_t>(*value);
  }

  // Returns the decay of WSD that the kwargs name.
  std::optional<config::WsdDecayStyle> wsd_style(const char* key) const {
    if (!has(key)) return std::nullopt;
    const nlohmann::json& value = object_.at(key);
    const auto style =
        value.is_string() ? config::choice_of<config::WsdDecayStyle>(value.get<std::string>()) : std::nullopt;
    std::vector<std::string> names;
    for (const auto& [item, word] : config::EnumNames<config::WsdDecayStyle>::kNames) names.emplace_back(word);
    check<ConfigError>(style.has_value(), "{} is {}; it takes {}", name(key), value.dump(), list_in_words(names));
    return style;
  }

  // Refuses two keys with the same meaning.
  void exclude(const char* one, const char* other) const {
    check<ConfigError>(!has(one) || !has(other), "lr_scheduler_kwargs has both {} and {}; keep one", one, other);
  }

 private:
  nlohmann::json object_;
};

// Returns the group of embedding and head (decoupled_lr, decoupled_min_lr); std::nullopt when decoupled_lr is not set.
std::optional<RateGroup> decoupled_group(const config::OptimizerConfig& optimizer, const LrSchedule& schedule) {
  if (!optimizer.decoupled_lr) return std::nullopt;
  const RateGroup group{.max_lr = optimizer.decoupled_lr, .min_lr = optimizer.decoupled_min_lr};
  const std::vector<std::string> found =
      problems(schedule.params(), group, "embedding and head (decoupled_lr, decoupled_min_lr)");
  check<ConfigError>(found.empty(), "the schedule is impossible: {}", fmt::join(found, "\n"));
  return group;
}

// Builds a schedule from the options, part by part.
class ScheduleMaker {
 public:
  ScheduleMaker(const TrainingArguments& args, const layout::MicrobatchCalculator& batches,
                std::optional<int64_t> total_steps)
      : args_(args), options_(args.schedule), kwargs_(args.schedule), unit_(unit_of(args)) {
    // A step is worth the final global batch: with a growing batch, lengths in steps mean steps of the end size, as in
    // Megatron.
    names_.unit = unit_ == ScheduleUnit::kSamples ? "samples" : "steps";
    batch_ = unit_ == ScheduleUnit::kSamples ? batches.final_global_batch_size() : 1;
    set_length(batches, total_steps);
  }

  RunSchedule make() {
    // The order matters: the warm-up may be a fraction of the decay length, which may be that of the run.
    set_shape();
    set_rates();
    set_decay_length();
    set_warmup();
    set_weight_decay();
    RunSchedule run{
        LrSchedule(params_, names_), unit_, train_iters_,
        optim::scheduler_load(options_.override_opt_param_scheduler, options_.use_checkpoint_opt_param_scheduler)};
    if (const auto decoupled = decoupled_group(args_.optimizer, run.schedule)) run.groups.push_back(*decoupled);
    return run;
  }

 private:
  // Converts steps to progress units; the check keeps the product within 64 bits.
  int64_t in_units(int64_t steps, const std::string& name) const {
    check<ConfigError>(steps >= 0 && steps <= kLongest / batch_,
                       "{} is {} steps of {} samples; a run has at most {} samples", name, steps, batch_, kLongest);
    return steps * batch_;
  }
  Length steps(int64_t value, const std::string& name) const { return {in_units(value, name), name}; }

  // total_steps, which the caller has computed from epochs and data, wins over max_steps; samples are the last resort.
  void set_length(const layout::MicrobatchCalculator& batches, std::optional<int64_t> total_steps) {
    const config::RunConfig& run = args_.run;
    if (!total_steps && run.max_steps > 0) total_steps = run.max_steps;
    check<ConfigError>(total_steps || run.train_samples,
                       "the length of the run is not known; set max_steps (train_iters) or train_samples");
    if (total_steps) {
      check<ConfigError>(*total_steps >= 1, "max_steps is {}; a run has 1 step or more", *total_steps);
      train_iters_ = *total_steps;
      total_ = steps(*total_steps, run.max_steps > 0 ? "max_steps (train_iters)" : "the length of the run");
      return;
    }
    check<ConfigError>(*run.train_samples >= 1 && *run.train_samples <= kLongest,
                       "train_samples is {}; it must be a whole number from 1 to {}", *run.train_samples, kLongest);
    train_iters_ = batches.steps_of(*run.train_samples);
    check<ConfigError>(train_iters_ >= 1, "train_samples is {}, less than a step of {} samples takes",
                       *run.train_samples, batches.final_global_batch_size());
    total_ = {*run.train_samples, "train_samples"};
  }

  void set_shape() {
    names_.lr_decay_style = options_.lr_decay_style ? "lr_decay_style" : "lr_scheduler_type";
    params_.lr_decay_style = options_.lr_decay_style.value_or(style_of(options_.lr_scheduler_type));
    params_.lr_wsd_decay_style = kwargs_.wsd_style("lr_wsd_decay_style").value_or(options_.lr_wsd_decay_style);
    names_.wsd_decay_steps = options_.lr_decay_style ? "lr_wsd_decay_iters or lr_wsd_decay_samples"
                                                     : ScheduleKwargs::name("wsd_decay_steps");
    if (const std::optional<Length> length = wsd_length()) {
      params_.wsd_decay_steps = length->value;
      names_.wsd_decay_steps = length->name;
    }
  }

  // Three options name the same length: two keys of the kwargs, then Megatron's, in steps or samples.
  std::optional<Length> wsd_length() const {
    kwargs_.exclude("wsd_decay_steps", "num_decay_steps");
    for (const char* key : {"wsd_decay_steps", "num_decay_steps"})
      if (const auto value = kwargs_.steps(key)) return steps(*value, ScheduleKwargs::name(key));
    check<ConfigError>(!options_.lr_wsd_decay_iters || !options_.lr_wsd_decay_samples,
                       "lr_wsd_decay_iters and lr_wsd_decay_samples both set the last phase of WSD; keep one");
    if (options_.lr_wsd_decay_iters) return steps(*options_.lr_wsd_decay_iters, "lr_wsd_decay_iters");
    if (options_.lr_wsd_decay_samples) return Length{*options_.lr_wsd_decay_samples, "lr_wsd_decay_samples"};
    return std::nullopt;
  }

  // Each rate comes from lr_scheduler_kwargs if given there, otherwise from its option; the name follows.
  void set_rates() {
    const auto rate = [this](const char* key, double option, const char* option_name, std::string& name) {
      name = kwargs_.has(key) ? ScheduleKwargs::name(key) : option_name;
      return kwargs_.number(key).value_or(option);
    };
    check<ConfigError>(args_.optimizer.learning_rate || kwargs_.has("max_lr"),
                       "lr is not given; set lr (learning_rate)");
    params_.max_lr = rate("max_lr", args_.optimizer.learning_rate.value_or(0), "learning_rate (lr)", names_.max_lr);
    params_.init_lr = rate("init_lr", options_.lr_warmup_init, "lr_warmup_init", names_.init_lr);
    params_.min_lr = rate("min_lr", options_.min_lr, "min_lr", names_.min_lr);
    kwargs_.exclude("min_lr", "min_lr_rate");
    // A floor relative to the peak, after the peak is known.
    if (const auto part = kwargs_.number("min_lr_rate")) {
      check<ConfigError>(*part >= 0 && *part <= 1, "{} is {}; it is a part of the peak, from 0 to 1",
                         ScheduleKwargs::name("min_lr_rate"), *part);
      params_.min_lr = *part * params_.max_lr;
      names_.min_lr = ScheduleKwargs::name("min_lr_rate");
    }
  }

  // Later lines win: the whole run, then Megatron's options, then the kwargs.
  void set_decay_length() {
    Length length = total_;
    if (options_.lr_decay_samples) length = {*options_.lr_decay_samples, "lr_decay_samples"};
    if (options_.lr_decay_iters) length = steps(*options_.lr_decay_iters, "lr_decay_iters");
    if (const auto value = kwargs_.steps("lr_decay_steps"))
      length = steps(*value, ScheduleKwargs::name("lr_decay_steps"));
    check<ConfigError>(!params_.wsd_decay_steps || *params_.wsd_decay_steps <= length.value,
                       "{} is {} {}, more than the decay length, {} {}", names_.wsd_decay_steps,
                       params_.wsd_decay_steps.value_or(0), names_.unit, length.name, length.value);
    params_.lr_decay_steps = length.value;
    names_.lr_decay_steps = length.name;
  }

  void set_warmup() {
    names_.lr_warmup_steps = "lr_warmup_fraction";
    if (options_.lr_warmup_fraction) {
      params_.lr_warmup_steps = *options_.lr_warmup_fraction * static_cast<double>(params_.lr_decay_steps);
      return;
    }
    const Length length = warmup_length();
    params_.lr_warmup_steps = static_cast<double>(length.value);
    names_.lr_warmup_steps = length.name;
  }

  // Hugging Face's rule: warmup_steps of 1 or more counts steps, below 1 it is a fraction of the run, and warmup_ratio
  // is read only if warmup_steps is 0. Fractions round up, so that a short run still warms up.
  Length warmup_length() const {
    if (options_.lr_warmup_iters > 0) return steps(options_.lr_warmup_iters, "lr_warmup_iters");
    if (options_.lr_warmup_samples > 0) return {options_.lr_warmup_samples, "lr_warmup_samples"};
    const auto all = static_cast<double>(train_iters_);
    const double given = options_.warmup_steps;
    check<ConfigError>(given >= 0 && given <= static_cast<double>(kLongest),
                       "warmup_steps is {}; it must be a number from 0 to {}", given, kLongest);
    if (given >= 1) return steps(static_cast<int64_t>(given), "warmup_steps");
    if (given > 0) return steps(static_cast<int64_t>(std::ceil(all * given)), "warmup_steps");
    const double ratio = options_.warmup_ratio;
    check<ConfigError>(ratio >= 0 && ratio <= 1, "warmup_ratio is {}; it must lie between 0 and 1", ratio);
    return steps(static_cast<int64_t>(std::ceil(all * ratio)), ratio > 0 ? "warmup_ratio" : "warmup_steps");
  }

  // A constant decay is one whose start and end are both weight_decay.
  void set_weight_decay() {
    const config::OptimizerConfig& optimizer = args_.optimizer;
    params_.wd_incr_style = optimizer.weight_decay_incr_style;
    params_.start_wd = optimizer.start_weight_decay.value_or(optimizer.weight_decay);
    params_.end_wd = optimizer.end_weight_decay.value_or(optimizer.weight_decay);
    params_.wd_incr_steps = total_.value;
    names_.start_wd = optimizer.start_weight_decay ? "start_weight_decay" : "weight_decay";
    names_.end_wd = optimizer.end_weight_decay ? "end_weight_decay" : "weight_decay";
    names_.wd_incr_style = "weight_decay_incr_style";
    names_.wd_incr_steps = total_.name;
  }

  const TrainingArguments& args_;
  const ScheduleConfig& options_;
  ScheduleKwargs kwargs_;
  ScheduleUnit unit_;
  int64_t batch_ = 1;  // progress units per step
  int64_t train_iters_ = 0;
  Length total_{0, ""};  // the whole run
  ScheduleParams params_;
  ScheduleNames names_;
};

}  // namespace

RunSchedule make_schedule(const TrainingArguments& args, const layout::MicrobatchCalculator& batches,
                          std::optional<int64_t> total_steps) {
  return ScheduleMaker(args, batches, total_steps).make();
}

}  // namespace megalith::run
