// Learning rate and weight decay as functions of the progress of training.
//
// Megatron's schedule: a linear warm-up, then one of five shapes. With n the progress, W the warm-up, D the decay
// length, r = (n - W) / (D - W):
//
//   n <= W, W > 0          init + (max - init) * n / W
//   constant               max, forever
//   n > D                  min
//   linear                 min + (max - min) * (1 - r)
//   cosine                 min + (max - min) * (1 + cos(pi r)) / 2
//   inverse-square-root    the larger of min and max * sqrt(W') / sqrt(n'), W' = larger of W and 1, likewise n'
//   WSD                    max until D - A, then with q = (n - D + A) / A from max to min by the factor
//                          linear 1 - q, cosine (1 + cos(pi q)) / 2, exponential 2 * 0.5^q - 1, minus_sqrt 1 - sqrt(q)
//
// Weight decay rises from start to end over wd_incr_steps, linearly or along half a cosine, and then stays there.
//
// Progress is counted in samples or in optimizer steps, as RunSchedule says (run_schedule.h). The first step of
// training has progress 0.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/config/enums.h"

namespace megalith::optim {

// Parameters of a schedule, named as in Megatron's OptimizerParamScheduler.
struct ScheduleParams {
  double init_lr = 0;          // rate at progress 0 when there is a warm-up
  double max_lr = 0;           // peak
  double min_lr = 0;           // floor
  double lr_warmup_steps = 0;  // may be fractional; 0 means no warm-up
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

// The user's names for these values, for messages.
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
  std::string unit = "steps";  // unit of the four lengths
};

// The values in which one group of parameters differs; std::nullopt means the schedule's own value.
struct RateGroup {
  std::optional<double> max_lr;  // decoupled_lr: embedding and head
  std::optional<double> min_lr;  // decoupled_min_lr
  std::optional<double> start_wd;
  std::optional<double> end_wd;
  double lr_mult = 1;  // multiplies the rate; loraplus_lr_ratio for the B matrices of LoRA+
  double wd_mult = 1;  // multiplies the decay; 0 for biases and norms
  bool operator==(const RateGroup&) const = default;
};

// User-defined curves that replace the named ones, as functions of the progress: called with 0 for the first step, and
// once more after the last step. They must be pure: a resumed run evaluates them at the checkpoint's progress. An empty
// function keeps the named curve. lr_mult and wd_mult of a group still apply; its own rates and decays do not.
struct RateFunctions {
  std::function<double(int64_t progress)> lr{};
  std::function<double(int64_t progress)> weight_decay{};
};

// Returns every problem of the values, each with what is allowed; empty if an LrSchedule can be built from them.
std::vector<std::string> problems(const ScheduleParams& params, const ScheduleNames& names = {});
// Does the same for one group of such a schedule; `name` identifies the group in messages.
std::vector<std::string> problems(const ScheduleParams& params, const RateGroup& group, const std::string& name);

// A value: copies are independent, every function is pure, any thread may call it.
class LrSchedule {
 public:
  // Throws a ConfigError that lists every problem, one per line.
  explicit LrSchedule(ScheduleParams params, const ScheduleNames& names = {}, RateFunctions functions = {});

  // The parameters as given; those of a curve that a function replaces have no effect.
  const ScheduleParams& params() const { return params_; }
  const RateFunctions& functions() const { return functions_; }
  // Returns the learning rate at `progress` >= 0, with lr_mult applied. Throws a ConfigError if a user-defined curve
  // returns anything but a finite number >= 0.
  double lr(int64_t progress, const RateGroup& group = {}) const;
  // Returns the weight decay at `progress` >= 0, with wd_mult applied. Throws like lr().
  double weight_decay(int64_t progress, const RateGroup& group = {}) const;

 private:
  double wsd_factor(double progress) const;  // 1 at the peak, 0 at the floor

  ScheduleParams params_;
  RateFunctions functions_;
};

}  // namespace megalith::optim
