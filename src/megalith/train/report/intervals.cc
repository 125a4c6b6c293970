// Callbacks never act themselves: they set flags, and the trainer acts on all of them at one place. What differs from
// Hugging Face is only where flags come from: exit_interval is Megatron's.
#include "megalith/train/report/intervals.h"

#include <cmath>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::train {
namespace {

using config::Interval;

// Values in (0, 1) are fractions of max_steps, as in Hugging Face's options.
int64_t resolved(double steps, int64_t max_steps) {
  if (steps > 0 && steps < 1) return static_cast<int64_t>(std::ceil(static_cast<double>(max_steps) * steps));
  return static_cast<int64_t>(steps);
}

// An interval of 0 means never.
bool is_multiple(int64_t step, int64_t interval) { return interval > 0 && step % interval == 0; }

// Throws for a metric that no evaluation reports, with the names of those that it does.
double value_of(const BestMetric& best, const MetricList& metrics) {
  const auto value = metrics.find(best.name);
  if (value) return *value;
  std::vector<std::string> names;
  for (const auto& [name, number] : metrics) names.push_back(name);
  throw ConfigError(fmt::format("metric_for_best_model is {}, but an evaluation reports {}. Choose one of these",
                                best.name, list_in_words(names)));
}

}  // namespace

void resolve_intervals(const TrainerSettings& settings, TrainerState& state) {
  state.logging_steps = resolved(settings.log.steps, state.max_steps);
  state.eval_steps = resolved(settings.eval.steps, state.max_steps);
  state.save_steps = resolved(settings.save.steps, state.max_steps);
}

bool note_evaluation(const TrainerSettings& settings, const MetricList& metrics, TrainerState& state,
                     TrainerControl& control) {
  if (!settings.eval.tracks_best) return false;
  const BestMetric& best = settings.eval.best_metric;
  const double value = value_of(best, metrics);
  // Any value is better than none or NaN; NaN itself is recorded only if there is nothing better.
  if (state.best_metric && !std::isnan(*state.best_metric) && !best.better(value, *state.best_metric)) return false;
  state.best_metric = value;
  state.best_global_step = state.global_step;
  if (settings.save.strategy == Interval::kBest && !settings.save.output_dir.empty()) control.should_save = true;
  return true;
}

void FlowCallback::on_step_end(TrainerEvent& event) {
  const LogSettings& log = event.settings.log;
  const EvalPlan& eval = event.settings.eval;
  const SaveSettings& save = event.settings.save;
  const TrainerState& state = event.state;
  TrainerControl& control = event.control;
  const int64_t step = state.global_step;
  const bool saves_by_steps = save.strategy == Interval::kSteps && !save.output_dir.empty();

  if (step == 1 && log.first_step) control.should_log = true;
  if (log.strategy == Interval::kSteps && is_multiple(step, state.logging_steps)) control.should_log = true;
  if (eval.strategy == Interval::kSteps && is_multiple(step, state.eval_steps) &&
      eval.delay <= static_cast<double>(step))
    control.should_evaluate = true;
  if (saves_by_steps && is_multiple(step, state.save_steps)) control.should_save = true;

  // Only the last step gets here.
  if (step < state.max_steps && !is_multiple(step, event.settings.length.exit_interval)) return;
  control.should_training_stop = true;
  if (saves_by_steps) control.should_save = true;
}

void FlowCallback::on_epoch_end(TrainerEvent& event) {
  const TrainerSettings& settings = event.settings;
  if (settings.log.strategy == Interval::kEpoch) event.control.should_log = true;
  if (settings.eval.strategy == Interval::kEpoch && settings.eval.delay <= event.state.epoch.value_or(0))
    event.control.should_evaluate = true;
  if (settings.save.strategy == Interval::kEpoch && !settings.save.output_dir.empty()) event.control.should_save = true;
}

void EarlyStoppingCallback::on_evaluate(TrainerEvent& event) {
  const BestMetric& best = event.settings.eval.best_metric;
  const double value = value_of(best, event.metrics);
  // Runs before note_evaluation, so best_metric is still that of the earlier evaluations.
  const auto& before = event.state.best_metric;
  const bool gain = !before || (best.better(value, *before) && std::abs(value - *before) > threshold_);
  counter_ = gain ? 0 : counter_ + 1;
  if (counter_ >= patience_) event.control.should_training_stop = true;
}

std::optional<CallbackRecord> EarlyStoppingCallback::record() const {
  return CallbackRecord{
      "EarlyStoppingCallback",
      {{"early_stopping_patience", static_cast<double>(patience_)}, {"early_stopping_threshold", threshold_}},
      {{"early_stopping_patience_counter", static_cast<double>(counter_)}}};
}

void EarlyStoppingCallback::restore(const CallbackRecord& saved) {
  counter_ = static_cast<int>(saved.attributes.find("early_stopping_patience_counter").value_or(0));
}

}  // namespace megalith::train
