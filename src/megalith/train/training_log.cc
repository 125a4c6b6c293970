// The numbers of a line are of three kinds: sums since the last line (loss, metrics, tokens, seconds), values of the
// last step (norm, rate, scale), and totals of the run. Only the first and the third kind are kept in checkpoints.
#include "megalith/train/training_log.h"

#include <cmath>

#include "megalith/base/error.h"

namespace megalith::train {

// Per token, long steps weigh more; otherwise each step counts once, as in Hugging Face's Trainer.
void TrainingLog::add_loss(const MetricTotal& loss) {
  const bool good = std::isfinite(loss.sum) || !options_.nan_inf_filter;
  // A step left out of the mean counts as the mean of the others.
  if (!good) return;
  if (options_.per_token)
    totals_.loss.add(loss);
  else
    totals_.loss.add({.name = {}, .sum = loss.mean(), .weight = 1});
  totals_.all_steps.add({.name = {}, .sum = loss.mean(), .weight = 1});
}

// Metrics have the same order in every report of a run.
void TrainingLog::add(const StepReport& report, const StepTiming& timing) {
  ++totals_.steps;
  add_loss(report.loss);
  std::vector<MetricTotal>& metrics = totals_.metrics;
  if (metrics.empty()) metrics.resize(report.metrics.size());
  for (size_t i = 0; i < report.metrics.size(); ++i) {
    metrics[i].name = report.metrics[i].name;
    metrics[i].add(report.metrics[i]);
  }
  totals_.seconds += timing.seconds;
  totals_.real_tokens += report.real_tokens;
  totals_.trained_tokens += report.trained_tokens;
  last_ = report;
  last_timing_ = timing;
}

MetricList TrainingLog::line() {
  check(totals_.steps > 0 && last_.has_value(), "a log line of no steps");
  const UpdateResult& update = last_->update;
  MetricList line;
  line.set("loss", totals_.loss.mean());
  if (update.step.grad_norm) line.set("grad_norm", *update.step.grad_norm);
  line.set("learning_rate", update.learning_rate);
  if (options_.loss_scale) line.set("loss_scale", update.loss_scale);
  for (const MetricTotal& metric : totals_.metrics)
    if (metric.weight != 0) line.set(metric.name, metric.mean());
  line.set("skipped_iter", last_->skipped() ? 1 : 0);
  line.set("num_zeros_in_grad", static_cast<double>(update.step.num_zeros.value_or(0)));
  line.set("token_per_sec_per_gpu", static_cast<double>(last_timing_.row_lengths) / last_timing_.seconds);
  line.set("tokens_per_second", static_cast<double>(totals_.real_tokens) / totals_.seconds);
  if (options_.effective_tokens)
    line.set("effective_tokens_per_second", static_cast<double>(totals_.trained_tokens) / totals_.seconds);
  // Starts the next line; only the totals of the run are kept.
  Totals next;
  next.all_steps = totals_.all_steps;
  totals_ = std::move(next);
  return line;
}

double TrainingLog::mean_loss() const { return totals_.all_steps.mean(); }

}  // namespace megalith::train
