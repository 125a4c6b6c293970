// `megalith preview lr`: shows learning rate and weight decay over the steps of a run. The schedule may count samples
// while the batch grows, so steps are first converted to samples (Progress). A run may have millions of steps: nothing
// here walks through all of them except --json, which shows at most kMaxRows.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/cli/preview/curve.h"
#include "megalith/cli/preview/preview_internal.h"
#include "megalith/config/derive.h"
#include "megalith/config/validate.h"
#include "megalith/run/resolve/schedule.h"

namespace megalith::cli {

namespace {

using layout::MicrobatchCalculator;
using nlohmann::ordered_json;
using optim::RateGroup;
using optim::RunSchedule;
using optim::ScheduleParams;
using optim::ScheduleUnit;

// With more steps than this, --json shows every n-th step.
constexpr int64_t kMaxRows = 100'000;
// Keeps products of steps and samples within 64 bits.
constexpr int64_t kMaxRunSamples = 1'000'000'000'000'000;

constexpr PreviewUsage kPreviewLrUsage{
    "megalith preview lr [run.yaml] --max_steps N [--learning_rate X --lr_scheduler_type NAME --warmup_steps N …] "
    "[--json]\n"
    "megalith preview lr --train_iters N --lr X [--lr_decay_style NAME --lr_warmup_iters N --global_batch_size N …]\n\n"
    "The learning rate (and the weight decay, if it changes) as a curve, and at the steps that matter.",
    "Learning-rate schedule", true};

// Computes the samples consumed after a step from stretches of steps with the same batch.
class Progress {
 public:
  Progress(const MicrobatchCalculator& calculator, const RunSchedule& run) : run_(run) {
    int64_t step = 0;
    int64_t consumed = 0;
    // Each round adds one stretch; the calculator says after how many samples the batch changes.
    while (true) {
      const int64_t samples = calculator.at(consumed).running_global_batch_size;
      check<ConfigError>(samples > 0, "after {} samples the batch leaves no micro-batch for every data-parallel rank",
                         consumed);
      stretches_.push_back({step, consumed, samples});
      check<ConfigError>(run.train_iters - step <= (kMaxRunSamples - consumed) / samples,
                         "{} steps of {} samples are more than a run can have, {} samples", run.train_iters, samples,
                         kMaxRunSamples);
      const std::optional<int64_t> change = calculator.next_change(consumed);
      if (!change) return;
      // A change takes effect with the first step after it, so the last step of a stretch may overshoot.
      const int64_t steps = std::min((*change - consumed + samples - 1) / samples, run.train_iters - step);
      if (steps <= 0) return;
      step += steps;
      consumed += steps * samples;
    }
  }

  // Returns the samples consumed before step `step`, in O(log stretches).
  int64_t samples(int64_t step) const {
    const auto next = std::ranges::upper_bound(stretches_, step, {}, &Stretch::first_step);
    const Stretch& stretch = *std::prev(next);
    return stretch.consumed + (step - stretch.first_step) * stretch.samples_of_step;
  }
  // Returns the progress after a step in the schedule's unit.
  int64_t at(int64_t step) const { return run_.unit == ScheduleUnit::kSamples ? samples(step) : step; }
  // Returns the first step with that progress or more; std::nullopt when the run ends before.
  std::optional<int64_t> step_of(double progress) const {
    if (static_cast<double>(at(run_.train_iters)) < progress) return std::nullopt;
    // Progress grows with every step: bisect.
    int64_t low = 0;
    int64_t high = run_.train_iters;
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (static_cast<double>(at(middle)) < progress)
        low = middle + 1;
      else
        high = middle;
    }
    return low;
  }

 private:
  // Consecutive steps with the same batch.
  struct Stretch {
    int64_t first_step;
    int64_t consumed;  // samples before it
    int64_t samples_of_step;
  };
  const RunSchedule& run_;
  std::vector<Stretch> stretches_;
};

// Values by step of a run, for the table, the curves and JSON.
struct LrPreview {
  const RunSchedule& run;
  const Progress& progress;
  std::vector<RateGroup> groups;  // the usual one, then embedding and head when they have rates of their own

  double lr(int64_t step, size_t group = 0) const { return run.schedule.lr(progress.at(step), groups[group]); }
  double weight_decay(int64_t step, size_t group = 0) const {
    return run.schedule.weight_decay(progress.at(step), groups[group]);
  }
};

// Checks only the arguments that decide the schedule: other mistakes in the options do not matter here.
void validate_schedule(const config::TrainingArguments& args, int dp) {
  config::TrainingArguments only;
  only.dialect = args.dialect;
  only.schedule = args.schedule;
  only.batch = args.batch;
  only.shape.seq_length = args.shape.seq_length;
  only.run.max_steps = args.run.max_steps;
  only.run.train_samples = args.run.train_samples;
  only.optimizer.learning_rate = args.optimizer.learning_rate;
  only.optimizer.weight_decay = args.optimizer.weight_decay;
  only.optimizer.weight_decay_incr_style = args.optimizer.weight_decay_incr_style;
  only.optimizer.start_weight_decay = args.optimizer.start_weight_decay;
  only.optimizer.end_weight_decay = args.optimizer.end_weight_decay;
  only.optimizer.decoupled_lr = args.optimizer.decoupled_lr;
  only.optimizer.decoupled_min_lr = args.optimizer.decoupled_min_lr;
  config::validate(only, {.world_size = dp, .needs_inputs = false});
}

// The names are those of Megatron's OptimizerParamScheduler.
ordered_json params_json(const ScheduleParams& params) {
  ordered_json json{{"init_lr", params.init_lr},
                    {"max_lr", params.max_lr},
                    {"min_lr", params.min_lr},
                    {"lr_warmup_steps", params.lr_warmup_steps},
                    {"lr_decay_steps", params.lr_decay_steps},
                    {"lr_decay_style", config::choice_name(params.lr_decay_style)},
                    {"start_wd", params.start_wd},
                    {"end_wd", params.end_wd},
                    {"wd_incr_steps", params.wd_incr_steps},
                    {"wd_incr_style", config::choice_name(params.wd_incr_style)},
                    {"wsd_decay_steps", nullptr},
                    {"lr_wsd_decay_style", config::choice_name(params.lr_wsd_decay_style)}};
  if (params.wsd_decay_steps) json["wsd_decay_steps"] = *params.wsd_decay_steps;
  return json;
}

// Writes the fields of the golden file lr_schedule.json, which calls the parameters `params` in one list and `resolved`
// in another.
std::string lr_json(const LrPreview& preview) {
  const RunSchedule& run = preview.run;
  const int64_t every = std::max<int64_t>(1, (run.train_iters + kMaxRows - 1) / kMaxRows);
  ordered_json json{{"train_iters", run.train_iters},
                    {"unit", run.unit == ScheduleUnit::kSamples ? "samples" : "steps"},
                    {"params", params_json(run.schedule.params())},
                    {"resolved", params_json(run.schedule.params())},
                    {"param_groups", ordered_json::array()},
                    {"every", every},
                    {"increments", ordered_json::array()},
                    {"trace", ordered_json::array()}};
  for (const RateGroup& group : preview.groups) {
    ordered_json entry = ordered_json::object();
    if (group.max_lr) entry["max_lr"] = *group.max_lr;
    if (group.min_lr) entry["min_lr"] = *group.min_lr;
    json["param_groups"].push_back(std::move(entry));
  }
  for (int64_t step = 0;; step = std::min(step + every, run.train_iters)) {
    const int64_t progress = preview.progress.at(step);
    if (step > 0) json["increments"].push_back(progress - json["trace"].back()[0].get<int64_t>());
    ordered_json row = ordered_json::array({progress});
    for (size_t i = 0; i < preview.groups.size(); ++i) {
      row.push_back(preview.lr(step, i));
      row.push_back(preview.weight_decay(step, i));
    }
    json["trace"].push_back(std::move(row));
    if (step == run.train_iters) break;
  }
  // The state that a checkpoint of the last step would hold.
  optim::ParamScheduler scheduler(run.schedule, preview.groups);
  scheduler.step(preview.progress.at(run.train_iters));
  json["state"] = ordered_json::parse(optim::to_json_text(scheduler.state()));
  return json.dump() + "\n";
}

// A step worth a row in the table.
struct Moment {
  int64_t step;
  std::string what;  // empty for a row in between
};

// Returns the steps where the shape of the curve changes, in order.
std::vector<Moment> turns(const LrPreview& preview) {
  const ScheduleParams& params = preview.run.schedule.params();
  std::vector<Moment> out;
  // Moments after the end of the run are left out.
  const auto add = [&](double progress, const char* what) {
    if (const auto step = preview.progress.step_of(progress)) out.push_back({*step, what});
  };
  const auto end = static_cast<double>(params.lr_decay_steps);
  const bool decays = params.lr_decay_style != config::LrDecayStyle::kConstant;
  const bool stable = params.lr_decay_style == config::LrDecayStyle::kWsd;
  if (params.lr_warmup_steps > 0)
    add(params.lr_warmup_steps, decays && !stable ? "warm-up ends, decay starts" : "warm-up ends");
  if (stable) add(end - static_cast<double>(*params.wsd_decay_steps), "decay starts");
  if (decays) add(end, "decay ends");
  std::ranges::stable_sort(out, {}, &Moment::step);
  return out;
}

// Adds the ends and the quarters to the turns; moments of the same step share a row.
std::vector<Moment> moments(const LrPreview& preview) {
  const int64_t last = preview.run.train_iters;
  std::vector<Moment> all = turns(preview);
  all.insert(all.begin(), {0, "the first step's rate"});
  all.push_back({last, "the run ends"});
  // The same as last * quarter / 4, without overflow.
  for (const int64_t quarter : {1, 2, 3}) all.push_back({last / 4 * quarter + last % 4 * quarter / 4, ""});
  std::ranges::stable_sort(all, {}, &Moment::step);
  std::vector<Moment> rows;
  for (Moment& moment : all) {
    if (rows.empty() || rows.back().step != moment.step)
      rows.push_back(std::move(moment));
    else if (!moment.what.empty())
      rows.back().what += (rows.back().what.empty() ? "" : "; ") + moment.what;
  }
  return rows;
}

// "steps done" counts finished steps: row 0 is the rate that the first step uses.
std::string lr_table(const LrPreview& preview) {
  const bool decoupled = preview.groups.size() > 1;
  std::string text = fmt::format("{:>12}  {:>14}  {:>13}  ", "steps done", "samples", "learning rate");
  if (decoupled) text += fmt::format("{:>13}  ", "embed., head");
  text += fmt::format("{:>12}\n", "weight decay");
  for (const Moment& moment : moments(preview)) {
    text += fmt::format("{:>12}  {:>14}  {:>13.6g}  ", moment.step, preview.progress.samples(moment.step),
                        preview.lr(moment.step));
    if (decoupled) text += fmt::format("{:>13.6g}  ", preview.lr(moment.step, 1));
    text +=
        fmt::format("{:>12.6g}{}{}\n", preview.weight_decay(moment.step), moment.what.empty() ? "" : "  ", moment.what);
  }
  return text;
}

// A constant weight decay is not worth a curve.
std::string lr_curves(const LrPreview& preview, int width) {
  const ScheduleParams& params = preview.run.schedule.params();
  const auto last = static_cast<double>(preview.run.train_iters);
  const auto step_at = [last](double x) { return static_cast<int64_t>(std::llround(x * last)); };
  std::vector<CurveMark> marks;
  for (const Moment& moment : turns(preview))
    marks.push_back(
        {static_cast<double>(moment.step) / last, fmt::format("{} after step {}", moment.what, moment.step)});
  std::string text = fmt::format("learning rate ({}) over {} steps\n", config::choice_name(params.lr_decay_style),
                                 preview.run.train_iters);
  constexpr int kTall = 10;
  constexpr int kSmall = 4;
  text += draw_curve([&](double x) { return preview.lr(step_at(x)); }, marks, {width, kTall});
  if (params.wd_incr_style == config::WeightDecayStyle::kConstant) return text + "\n";
  text += fmt::format("\nweight decay ({})\n", config::choice_name(params.wd_incr_style));
  return text + draw_curve([&](double x) { return preview.weight_decay(step_at(x)); }, {}, {width, kSmall}) + "\n";
}

}  // namespace

int preview_lr(Words words) {
  std::optional<int64_t> world_size, dp;
  const auto input = read_preview(kPreviewLrUsage, words,
                                  {{"world_size", "number of ranks; dp follows from it and tp, pp, cp", &world_size},
                                   {"dp", "data-parallel size (none: 1); only the samples of a step depend on it", &dp},
                                   {"data_parallel_size", "the same as dp", &dp}});
  if (!input) return kDone;
  const int data_parallel = data_parallel_size(input->args, world_size, dp);
  validate_schedule(input->args, data_parallel);
  // References below point into these locals, which live until the text is written.
  const MicrobatchCalculator calculator(config::batch_plan(input->args, data_parallel));
  const RunSchedule run = run::make_schedule(input->args, calculator);
  const Progress progress(calculator, run);
  const LrPreview preview{run, progress, run.groups};
  write_stdout(input->json ? lr_json(preview) : lr_curves(preview, terminal_width()) + lr_table(preview));
  return kDone;
}

}  // namespace megalith::cli
