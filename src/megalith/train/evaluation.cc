// An evaluation must give the same numbers in every layout and for every batch size. Therefore losses are summed with
// their token counts and divided once, at the end, over all ranks; and every rank runs the same number of passes, with
// fillers of weight 0 where it has no samples left, because each pass contains collectives.
#include "megalith/train/evaluation.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "megalith/base/error.h"
#include "megalith/base/task_progress.h"
#include "megalith/train/report/metric_sums.h"
#include "megalith/train/training_data.h"

namespace megalith::train {

namespace {

using data::MicroBatch;

// Names of the sums that every evaluation has, in the order in which the totals are read below.
constexpr const char* kEvalLoss = "loss";
constexpr const char* kEvalSamples = "samples";

// "loss" -> "eval_loss" and, if the loss is a mean of -log p, exp of it as "eval_perplexity". Sums without weight, such
// as a metric that no micro-batch reported, are left out.
MetricList as_metrics(const std::vector<MetricTotal>& totals, const std::string& prefix, bool perplexity) {
  MetricList metrics;
  for (const MetricTotal& total : totals) {
    if (total.name == kEvalSamples || total.weight == 0) continue;
    metrics.set(prefix + "_" + total.name, total.mean());
    if (total.name == kEvalLoss && perplexity) metrics.set(prefix + "_perplexity", std::exp(total.mean()));
  }
  return metrics;
}

}  // namespace

EvalLoopOutput evaluation_loop(MicrobatchRunner& runner, const EvalData& data, const EvalSettings& settings) {
  const auto start = std::chrono::steady_clock::now();
  check<ConfigError>(settings.micro_batch_size > 0, "per_device_eval_batch_size is {}; it must be positive",
                     settings.micro_batch_size);
  const EvalReader reader(data, settings.micro_batch_size, runner.context());
  std::vector<std::string> names{kEvalLoss, kEvalSamples};
  for (std::string& key : runner.objective().metrics_keys(Phase::kEvaluation)) names.push_back(std::move(key));
  MetricSums sums(std::move(names));
  // Context-parallel ranks share their tokens, so only one of them counts.
  const double counts = runner.counts_for_replica() ? 1 : 0;
  int64_t groups = 0;
  TaskProgress progress("evaluating", TaskProgress::Unit::kCount, reader.samples(), "samples",
                        runner.context().rank() == 0);
  for (int64_t first = 0; first < reader.microbatches(); ++groups) {
    // As many micro-batches as a training step has, so that the pipeline is as full as in training.
    const auto wanted = static_cast<int>(std::min<int64_t>(settings.microbatches, reader.microbatches() - first));
    // The group may be larger than wanted, because the schedule needs it; the rest are fillers of count 0.
    std::vector<MicroBatch> group;
    for (int i = 0; i < runner.evaluation_group(wanted); ++i) group.push_back(reader.microbatch(first + i));
    const std::vector<MicrobatchLoss> losses = runner.evaluate(group);
    first += std::ssize(group);
    // All replicas are about as far as this one.
    progress.set(reader.samples() * std::min(first, reader.microbatches()) / reader.microbatches());
    if (settings.group_end) settings.group_end();
    // Only the last stage knows losses, and of its tensor-parallel ranks, which agree, one reports.
    if (!runner.speaks_for_replica()) continue;
    for (const MicroBatch& batch : group) sums.add(kEvalSamples, counts * static_cast<double>(batch.samples), counts);
    for (const MicrobatchLoss& loss : losses) {
      sums.add(kEvalLoss, loss.sum, counts * static_cast<double>(loss.count));
      for (const MicrobatchMetric& metric : loss.metrics) sums.add(metric.name, metric.sum, counts * metric.weight);
    }
  }
  const std::vector<MetricTotal> totals = sums.reduce(runner.context(), "evaluation");
  check<DataError>(totals[0].weight > 0,
                   "no token of the {} evaluation samples has a label, so there is no loss to compute",
                   reader.samples());
  const std::string& prefix = settings.metric_key_prefix;
  const bool perplexity = runner.objective().has_perplexity() && !runner.smooths_labels();
  EvalLoopOutput output{as_metrics(totals, prefix, perplexity), static_cast<int64_t>(totals[1].sum)};
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  output.metrics.set(prefix + "_runtime", seconds.count());
  output.metrics.set(prefix + "_samples_per_second", static_cast<double>(output.num_samples) / seconds.count());
  output.metrics.set(prefix + "_steps_per_second", static_cast<double>(groups) / seconds.count());
  return output;
}

}  // namespace megalith::train
