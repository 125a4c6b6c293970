// The formulas of lr_schedule.h and the checks on their parameters. All problems are collected before anything throws,
// so that a user can fix them in one go; messages use the names that the user wrote (ScheduleNames).
#include "megalith/optim/schedule/lr_schedule.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "megalith/base/error.h"

namespace megalith::optim {
namespace {

using config::LrDecayStyle;
using config::WeightDecayStyle;
using config::WsdDecayStyle;
using Problems = std::vector<std::string>;

// Adds the message to `out` unless `holds`.
template <typename... Args>
void require(bool holds, Problems& out, fmt::format_string<Args...> message, Args&&... args) {
  if (!holds) out.push_back(fmt::format(message, std::forward<Args>(args)...));
}

// Returns whether the value is a finite number >= 0; adds a problem if not.
bool check_amount(double value, const std::string& name, Problems& out) {
  const bool good = std::isfinite(value) && value >= 0;
  require(good, out, "{} is {}; it must be a finite number >= 0", name, value);
  return good;
}

// Comparisons follow only if both sides are numbers at all: one message per mistake.
void check_rates(const ScheduleParams& params, const ScheduleNames& names, Problems& out) {
  const bool max_is_good = check_amount(params.max_lr, names.max_lr, out);
  if (check_amount(params.min_lr, names.min_lr, out) && max_is_good)
    require(params.min_lr <= params.max_lr, out, "{} is {}, more than {} {}; the floor must not exceed the peak",
            names.min_lr, params.min_lr, names.max_lr, params.max_lr);
  if (check_amount(params.init_lr, names.init_lr, out) && max_is_good)
    require(params.init_lr <= params.max_lr, out, "{} is {}, more than {} {}; a warm-up starts at or below the peak",
            names.init_lr, params.init_lr, names.max_lr, params.max_lr);
}

// W < D keeps (n - W) / (D - W) finite.
void check_lengths(const ScheduleParams& params, const ScheduleNames& names, Problems& out) {
  require(params.lr_decay_steps > 0, out, "{} is {} {}; the decay must have a length of 1 or more",
          names.lr_decay_steps, params.lr_decay_steps, names.unit);
  if (check_amount(params.lr_warmup_steps, names.lr_warmup_steps, out) && params.lr_decay_steps > 0)
    require(params.lr_warmup_steps < static_cast<double>(params.lr_decay_steps), out,
            "{} is {} {}; the warm-up must end before the decay does, {} {} {}", names.lr_warmup_steps,
            params.lr_warmup_steps, names.unit, names.lr_decay_steps, params.lr_decay_steps, names.unit);
  if (params.lr_decay_style == LrDecayStyle::kWsd)
    require(params.wsd_decay_steps.has_value(), out, "{} WSD needs {}, the length of its last phase",
            names.lr_decay_style, names.wsd_decay_steps);
  if (params.wsd_decay_steps)
    require(*params.wsd_decay_steps >= 0, out, "{} is {}; it must not be negative", names.wsd_decay_steps,
            *params.wsd_decay_steps);
}

// Megatron only supports weight decay that grows.
void check_decay(double start, double end, const ScheduleParams& params, const ScheduleNames& names, Problems& out) {
  const bool start_is_good = check_amount(start, names.start_wd, out);
  if (!check_amount(end, names.end_wd, out) || !start_is_good) return;
  require(start <= end, out, "{} is {}, less than {} {}; weight decay can only grow", names.end_wd, end, names.start_wd,
          start);
  require(params.wd_incr_style != WeightDecayStyle::kConstant || start >= end, out,
          "{} constant, but {} is {} and {} {}; give one value or choose linear or cosine", names.wd_incr_style,
          names.start_wd, start, names.end_wd, end);
}

// From 1 at q = 0 to 0 at q = 1.
double half_cosine(double q) { return 0.5 * (std::cos(std::numbers::pi * q) + 1.0); }

// Returns the value of a user-defined curve if it is usable.
double checked_rate(double value, const char* what, int64_t progress) {
  check<ConfigError>(std::isfinite(value) && value >= 0,
                     "the user-defined schedule returned a {} of {} at progress {}; it must be a finite number >= 0",
                     what, value, progress);
  return value;
}

}  // namespace

std::vector<std::string> problems(const ScheduleParams& params, const ScheduleNames& names) {
  Problems out;
  check_rates(params, names, out);
  check_lengths(params, names, out);
  check_decay(params.start_wd, params.end_wd, params, names, out);
  const bool constant = params.wd_incr_style == WeightDecayStyle::kConstant;
  require(params.wd_incr_steps >= (constant ? 0 : 1), out, "{} is {} {}; it must be {} or more", names.wd_incr_steps,
          params.wd_incr_steps, names.unit, constant ? 0 : 1);
  return out;
}

std::vector<std::string> problems(const ScheduleParams& params, const RateGroup& group, const std::string& name) {
  Problems out;
  ScheduleNames names;
  for (std::string* word : {&names.max_lr, &names.min_lr, &names.start_wd, &names.end_wd}) *word += " of " + name;
  // The group's own values in place of the schedule's, checked by the same rules under the group's name.
  ScheduleParams own = params;
  own.max_lr = group.max_lr.value_or(params.max_lr);
  own.min_lr = group.min_lr.value_or(params.min_lr);
  own.init_lr = 0;  // not checked: a group's peak may lie below the start of the warm-up
  check_rates(own, names, out);
  check_decay(group.start_wd.value_or(params.start_wd), group.end_wd.value_or(params.end_wd), params, names, out);
  check_amount(group.lr_mult, "lr_mult of " + name, out);
  check_amount(group.wd_mult, "wd_mult of " + name, out);
  return out;
}

LrSchedule::LrSchedule(ScheduleParams params, const ScheduleNames& names, RateFunctions functions)
    : params_(params), functions_(std::move(functions)) {
  const Problems found = problems(params_, names);
  check<ConfigError>(found.empty(), "invalid schedule: {}", fmt::join(found, "\n"));
}

double LrSchedule::lr(int64_t progress, const RateGroup& group) const {
  check(progress >= 0, "progress {} is negative", progress);
  if (functions_.lr) return group.lr_mult * checked_rate(functions_.lr(progress), "learning rate", progress);
  const double max_lr = group.max_lr.value_or(params_.max_lr);
  const double min_lr = group.min_lr.value_or(params_.min_lr);
  const double warmup = params_.lr_warmup_steps;
  const auto n = static_cast<double>(progress);
  const auto end = static_cast<double>(params_.lr_decay_steps);
  // The order of the cases is Megatron's and matters at the borders: the warm-up includes n = W, and a constant rate
  // does not fall to the floor after D.
  if (warmup > 0 && n <= warmup) return group.lr_mult * (params_.init_lr + (max_lr - params_.init_lr) * n / warmup);
  if (params_.lr_decay_style == LrDecayStyle::kConstant) return group.lr_mult * max_lr;
  if (progress > params_.lr_decay_steps) return group.lr_mult * min_lr;
  if (params_.lr_decay_style == LrDecayStyle::kInverseSquareRoot) {
    const double rate = max_lr * std::sqrt(std::max(warmup, 1.0)) / std::sqrt(std::max(n, 1.0));
    return group.lr_mult * std::max(min_lr, rate);
  }
  const double part = (n - warmup) / (end - warmup);  // r of the header; W < D, so no division by zero
  double factor = 1.0 - part;
  if (params_.lr_decay_style == LrDecayStyle::kCosine) factor = half_cosine(part);
  if (params_.lr_decay_style == LrDecayStyle::kWsd) factor = wsd_factor(n);
  return group.lr_mult * (min_lr + factor * (max_lr - min_lr));
}

// Warm-up, stable, decay: the peak is held until the last phase of length A, which runs from 1 to 0.
double LrSchedule::wsd_factor(double progress) const {
  const auto length = static_cast<double>(*params_.wsd_decay_steps);
  const double start = static_cast<double>(params_.lr_decay_steps) - length;
  if (progress <= start) return 1.0;
  const double q = (progress - start) / length;
  switch (params_.lr_wsd_decay_style) {
    case WsdDecayStyle::kLinear:
      return 1.0 - q;
    case WsdDecayStyle::kCosine:
      return half_cosine(q);
    case WsdDecayStyle::kExponential:
      return 2.0 * std::pow(0.5, q) - 1.0;
    case WsdDecayStyle::kMinusSqrt:
      return 1.0 - std::sqrt(q);
  }
  throw InternalError("a WSD style without a formula");
}

double LrSchedule::weight_decay(int64_t progress, const RateGroup& group) const {
  check(progress >= 0, "progress {} is negative", progress);
  if (functions_.weight_decay)
    return group.wd_mult * checked_rate(functions_.weight_decay(progress), "weight decay", progress);
  const double start = group.start_wd.value_or(params_.start_wd);
  const double end = group.end_wd.value_or(params_.end_wd);
  if (progress > params_.wd_incr_steps || params_.wd_incr_style == WeightDecayStyle::kConstant)
    return group.wd_mult * end;
  // wd_incr_steps >= 1 here: problems() allows 0 only for a constant.
  const double part = static_cast<double>(progress) / static_cast<double>(params_.wd_incr_steps);
  const double factor = params_.wd_incr_style == WeightDecayStyle::kLinear ? part : half_cosine(1.0 - part);
  return group.wd_mult * (start + factor * (end - start));
}

}  // namespace megalith::optim
