#include "megalith/train/training_log.h"

#include <cmath>

#include "megalith/base/error.h"

namespace megalith::train {

void TrainingLog::add_loss(const MetricTotal& loss) {
  const bool good = std::isfinite(loss.sum) || !options_.nan_inf_filter;
  // A step that is left out counts as the mean of the others: it changes no mean.
  if (!good) return;
  if (options_.per_token)
    loss_.add(loss);
  else
    loss_.add({.name = {}, .sum = loss.mean(), .weight = 1});
  all_steps_.add({.name = {}, .sum = loss.mean(), .weight = 1});
}

void TrainingLog::add(const StepReport& report, const StepTiming& timing) {
  ++steps_;
  add_loss(report.loss);
  if (metrics_.empty()) metrics_.resize(report.metrics.size());
  for (size_t i = 0; i < report.metrics.size(); ++i) {
    metrics_[i].name = report.metrics[i].name;
    metrics_[i].add(report.metrics[i]);
  }
  seconds_ += timing.seconds;
  real_tokens_ += report.real_tokens;
  trained_tokens_ += report.trained_tokens;
  last_ = report;
  last_timing_ = timing;
}

MetricList TrainingLog::line() {
  check(steps_ > 0 && last_.has_value(), "a log line of no steps");
  const UpdateResult& update = last_->update;
  MetricList line;
  line.set("loss", loss_.mean());
  if (update.step.grad_norm) line.set("grad_norm", *update.step.grad_norm);
  line.set("learning_rate", update.learning_rate);
  if (options_.loss_scale) line.set("loss_scale", update.loss_scale);
  for (const MetricTotal& metric : metrics_)
    if (metric.weight != 0) line.set(metric.name, metric.mean());
  line.set("skipped_iter", last_->skipped() ? 1 : 0);
  line.set("num_zeros_in_grad", static_cast<double>(update.step.num_zeros.value_or(0)));
  line.set("token_per_sec_per_gpu", static_cast<double>(last_timing_.row_lengths) / last_timing_.seconds);
  line.set("tokens_per_second", static_cast<double>(real_tokens_) / seconds_);
  if (options_.effective_tokens)
    line.set("effective_tokens_per_second", static_cast<double>(trained_tokens_) / seconds_);
  steps_ = 0;
  loss_ = {};
  metrics_.clear();
  seconds_ = 0;
  real_tokens_ = trained_tokens_ = 0;
  return line;
}

double TrainingLog::mean_loss() const { return all_steps_.mean(); }

}  // namespace megalith::train
