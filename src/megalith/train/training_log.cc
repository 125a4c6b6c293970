// The numbers of a line are of three kinds: sums since the last line (loss, metrics, tokens, seconds), values of the
// last step (norm, rate, scale), and totals of the run. Only the first and the third kind are kept in checkpoints.
#include "megalith/train/training_log.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "megalith/base/error.h"

namespace megalith::train {

namespace {

// The mean of nothing is not a number: 0 would look like a perfect loss.
double mean_or_nan(const MetricTotal& total) {
  return total.weight == 0 ? std::numeric_limits<double>::quiet_NaN() : total.mean();
}

// Metrics have the same order in every report of a run.
void add_metrics(TrainingLog::StepSums& sums, const std::vector<MetricTotal>& metrics) {
  ++sums.steps;
  if (sums.metrics.empty()) sums.metrics.resize(metrics.size());
  for (size_t i = 0; i < metrics.size(); ++i) {
    sums.metrics[i].name = metrics[i].name;
    sums.metrics[i].add(metrics[i]);
  }
}

void set_means(MetricList& line, const std::vector<MetricTotal>& metrics) {
  for (const MetricTotal& metric : metrics)
    if (metric.weight != 0) line.set(metric.name, metric.mean());
}

// The numbers of one update that lines show before the metrics.
void set_update(MetricList& line, const UpdateResult& update, bool loss_scale) {
  if (update.step.grad_norm) line.set("grad_norm", *update.step.grad_norm);
  line.set("learning_rate", update.learning_rate);
  if (loss_scale) line.set("loss_scale", update.loss_scale);
}

}  // namespace

// A loss that is not finite is left out like a step that was skipped, so it counts as the mean of the others. Without
// the filter it counts although its step was skipped: the user wants to see it.
void TrainingLog::add_loss(const MetricTotal& loss, bool skipped) {
  const bool finite = std::isfinite(loss.sum);
  if (!finite) ++totals_.nan_steps;
  if (!finite && options_.nan_inf_filter) return;
  const MetricTotal step{.name = {}, .sum = loss.mean(), .weight = 1};
  const bool counts = !skipped || !finite;
  (counts ? totals_.updated : totals_.skipped).loss.add(options_.per_token ? loss : step);
  if (counts) totals_.all_steps.add(step);
}

void TrainingLog::add(const StepReport& report, const StepTiming& timing) {
  add_loss(report.loss, report.skipped());
  add_metrics(report.skipped() ? totals_.skipped : totals_.updated, report.metrics);
  totals_.seconds += timing.seconds;
  totals_.real_tokens += report.real_tokens;
  totals_.trained_tokens += report.trained_tokens;
  totals_.media += report.media;
  totals_.sounds += report.sounds;
  totals_.media_tokens += report.media_tokens;
  totals_.tower_flops += report.tower_flops;
  last_ = report;
  last_timing_ = timing;
}

MetricList TrainingLog::line() {
  check(steps_since_line() > 0 && last_.has_value(), "a log line of no steps");
  const StepSums &updated = totals_.updated, &skipped = totals_.skipped;
  const UpdateResult& update = last_->update;
  MetricList line;
  line.set("loss", mean_or_nan(updated.loss.weight != 0 ? updated.loss : skipped.loss));
  set_update(line, update, options_.loss_scale);
  set_means(line, (updated.steps > 0 ? updated : skipped).metrics);
  line.set("skipped_iter", static_cast<double>(skipped.steps));
  line.set("nan_iter", static_cast<double>(totals_.nan_steps));
  line.set("num_zeros_in_grad", static_cast<double>(update.step.num_zeros.value_or(0)));
  line.set("token_per_sec_per_gpu", static_cast<double>(last_timing_.row_lengths) / last_timing_.seconds);
  line.set("tokens_per_second", static_cast<double>(totals_.real_tokens) / totals_.seconds);
  if (options_.effective_tokens)
    line.set("effective_tokens_per_second", static_cast<double>(totals_.trained_tokens) / totals_.seconds);
  if (totals_.media > 0) line.set("images_per_second", static_cast<double>(totals_.media) / totals_.seconds);
  if (totals_.sounds > 0) line.set("sounds_per_second", static_cast<double>(totals_.sounds) / totals_.seconds);
  if (totals_.media + totals_.sounds > 0)
    line.set("media_token_share", static_cast<double>(totals_.media_tokens) /
                                      static_cast<double>(std::max<int64_t>(totals_.real_tokens, 1)));
  if (totals_.tower_flops > 0) line.set("tower_flops_per_second", totals_.tower_flops / totals_.seconds);
  // Starts the next line; only the totals of the run are kept.
  Totals next;
  next.all_steps = totals_.all_steps;
  totals_ = std::move(next);
  return line;
}

MetricList TrainingLog::last_step() const {
  check(last_.has_value(), "the numbers of a step before the first");
  MetricList numbers;
  numbers.set("loss", mean_or_nan(last_->loss));
  set_update(numbers, last_->update, options_.loss_scale);
  set_means(numbers, last_->metrics);
  if (const auto zeros = last_->update.step.num_zeros) numbers.set("num_zeros_in_grad", static_cast<double>(*zeros));
  return numbers;
}

double TrainingLog::mean_loss() const { return mean_or_nan(totals_.all_steps); }

}  // namespace megalith::train
