// Learning rate and weight decay as functions of how far training has come.
//
// Megatron's schedule: a linear warm-up, then one of five shapes. With n the progress, W the warm-up, D the decay
// length, r = (n - W) / (D - W):
//
//   n <= W, W > 0          init + (max - init) * n / W
//   constant               max, for ever
//   n > D                  min
//   linear                 min + (max - min) * (1 - r)
//   cosine                 min + (max - min) * (1 + cos(pi r)) / 2
//   inverse-square-root    the larger of min and max * sqrt(W') / sqrt(n'), W' = larger of W and 1, likewise n'
//   WSD                    max until D - A, then with q = (n - D + A) / A from max to min by the factor
//                          linear 1 - q, cosine (1 + cos(pi q)) / 2, exponential 2 * 0.5^q - 1, minus_sqrt 1 - sqrt(q)
//
// Weight decay goes from start to end over wd_incr_steps in a straight line or half a cosine, and stays there.
//
// Progress is counted in samples or in optimizer steps; whoever makes the schedule decides (run_schedule.h). A value
// of 0 belongs to the first step of training.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/choices.h"

namespace megalith::optim {

// Named as Megatron's OptimizerParamScheduler takes them.
struct ScheduleParams {
  double init_lr = 0;          // rate at progress 0 when there is a warm-up
  double max_lr = 0;           // peak
  double min_lr = 0;           // floor
  double lr_warmup_steps = 0;  // may be fractional; 0: none
  int64_t lr_decay_steps = 1;  // progress at which the floor is reached
  config::LrDecayStyle lr_decay_style = config::LrDecayStyle::kLinear;
  double start_wd = 0;
  double end_wd = 0;
  int64_t wd_incr_steps = 1;  // progress at which end_wd is reached
  config::WeightDecayStyle wd_incr_style = config::WeightDecayStyle::kConstant;
  std::optional<int64_t> wsd_decay_steps;  // length A of the last phase of WSD, which needs it
  config::WsdDecayStyle lr_wsd_decay_style = config::WsdDecayStyle::kExponential;
  bool operator==(const ScheduleParams&) const = default;
};

// What the user calls these values: for messages.
struct ScheduleNames {
  std::string init_lr = "init_lr";
  std::string max_lr = "max_lr";
  std::string min_lr = "min_lr";
  std::string lr_warmup_steps = "lr_warmup_steps";
  std::string lr_decay_steps = "lr_decay_steps";
  std::string lr_decay_style = "lr_decay_style";
  std::string start_wd = "start_wd";
  std::string end_wd = "end_wd";
  std::string wd_incr_steps = "wd_incr_steps";
  std::string wd_incr_style = "wd_incr_style";
  std::string wsd_decay_steps = "wsd_decay_steps";
  std::string unit = "steps";  // of the four lengths
};

// What a group of parameters has of its own; an empty value is the schedule's.
struct RateGroup {
  std::optional<double> max_lr;  // decoupled_lr: embedding and head
  std::optional<double> min_lr;  // decoupled_min_lr
  std::optional<double> start_wd;
  std::optional<double> end_wd;
  double lr_mult = 1;  // of the rate; B of LoRA+ has loraplus_lr_ratio
  double wd_mult = 1;  // of the decay; biases and norms have 0
  bool operator==(const RateGroup&) const = default;
};

// Curves of a program's own in place of the named ones, as functions of the progress: 0 for the first step, and once
// more for the step after the last. Pure: a resumed run asks again at the progress that the checkpoint holds. An empty
// function leaves the named curve. Of a group, lr_mult and wd_mult apply; rates and decays of its own do not.
struct RateFunctions {
  std::function<double(int64_t progress)> lr{};
  std::function<double(int64_t progress)> weight_decay{};
};

// Every problem of the values, each with what is allowed; none when an LrSchedule can be made of them.
std::vector<std::string> problems(const ScheduleParams& params, const ScheduleNames& names = {});
// The same for a group of such a schedule; `name` says which group.
std::vector<std::string> problems(const ScheduleParams& params, const RateGroup& group, const std::string& name);

// A value: copies are independent, every function is pure, any thread may call it.
class LrSchedule {
 public:
  // Throws ConfigError with every problem, one a line.
  explicit LrSchedule(ScheduleParams params, const ScheduleNames& names = {}, RateFunctions functions = {});

  const ScheduleParams& params() const { return params_; }
  const RateFunctions& functions() const { return functions_; }
  // At `progress` >= 0; lr_mult is applied. Throws ConfigError when a function of the program's own gives something
  // else than a finite number of at least 0.
  double lr(int64_t progress, const RateGroup& group = {}) const;
  // At `progress` >= 0; wd_mult is applied. Throws like lr().
  double weight_decay(int64_t progress, const RateGroup& group = {}) const;

 private:
  double wsd_factor(double progress) const;

  ScheduleParams params_;
  RateFunctions functions_;
};

}  // namespace megalith::optim
