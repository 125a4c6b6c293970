// One step: forward and backward under the guard, reduction of gradients, update, and one all-reduce for all numbers
// that are reported.
//
// The host should wait for the device only once per step. With begin_update the optimizer's kernels are queued before
// the host reads the gradient norm; the update itself checks on the device that all gradients are finite. The sums of
// the step are collected as tensors and read together in MetricSums::reduce.
#include "megalith/train/train_step.h"

#include <algorithm>
#include <cmath>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/comm/store/heartbeat.h"
#include "megalith/nn/tensor_parallel/fp8_history.h"
#include "megalith/train/device/device_waits.h"
#include "megalith/train/step/routing_step.h"

namespace megalith::train {

namespace {

// Names of the sums that every step has, in the order in which train_step reads them.
constexpr const char* kLossSum = "loss";
constexpr const char* kTokens = "tokens of the step";  // sum: without padding, weight: with
constexpr const char* kTrained = "tokens with a label";
constexpr const char* kStop = "stop requests";
constexpr const char* kClock = "clocks of all ranks";

// The first steps try out kernels and fill caches. After them, MEGALITH_FORBID_DEVICE_WAITS=1 makes any wait for the
// device before the update has been started an error (for tests).
constexpr int64_t kFirstSteps = 3;
bool looks_for_waits(int64_t step) { return env_flag("MEGALITH_FORBID_DEVICE_WAITS") && step > kFirstSteps; }

// Returns the number by which finalize_gradients divides; std::nullopt if each micro-batch's mean counts the same.
std::optional<int64_t> trained_tokens(const std::vector<MicrobatchLoss>& losses, const MicrobatchRunner& runner) {
  if (!runner.per_token_loss()) return std::nullopt;
  if (runner.context().place().cp_rank != 0) return 0;  // all context-parallel ranks have the same tokens
  int64_t count = 0;
  for (const MicrobatchLoss& loss : losses) count += loss.count;
  return count;
}

// Collects this rank's share of all reported numbers. On the last stage every context-parallel rank adds its part of
// the losses, but only the first one adds counts: the others count the same tokens. The list of names must be the same
// on every rank, so it is made from the configuration, not from what this rank saw.
MetricSums sums_of(const std::vector<MicrobatchLoss>& losses, const data::StepBatch& batch,
                   const MicrobatchRunner& runner, const model::VirtualModels& models, const StopFlag* stop) {
  std::vector<std::string> names{kLossSum, kTokens, kTrained, kStop, kClock};
  for (std::string& key : runner.objective().metrics_keys(Phase::kTraining)) names.push_back(std::move(key));
  for (std::string& name : runner.attached_losses()) names.push_back(std::move(name));
  for (std::string& key : routing_metrics(models.config(), runner.router_losses_by_layer()))
    names.push_back(std::move(key));
  MetricSums sums(std::move(names));
  end_routing_step(models, sums, runner.router_losses_by_layer());
  if (stop && stop->requested()) sums.add(kStop, 1, 1);
  sums.add(kClock, static_cast<double>(comm::monotonic_ns()) / 1e9, 1);
  // Only the clock, the stop request and the routers concern all ranks.
  if (!runner.speaks_for_replica()) return sums;
  const double counts = runner.counts_for_replica() ? 1 : 0;
  const auto add = [&](const std::string& name, const at::Tensor& sum, int64_t count) {
    if (runner.per_token_loss())
      sums.add(name, sum, counts * static_cast<double>(count));
    else
      sums.add(name, sum.div(static_cast<double>(std::max<int64_t>(count, 1))), counts);
  };
  for (const MicrobatchLoss& loss : losses) {
    if (runner.per_token_loss())
      sums.add(kLossSum, loss.value(), counts * static_cast<double>(loss.count));
    else
      sums.add(kLossSum, loss.value() / static_cast<double>(std::max<int64_t>(loss.count, 1)), counts);
    for (const AttachedLoss& attached : loss.attached) add(attached.name, attached.sum, attached.count);
    for (const MicrobatchMetric& metric : loss.metrics) sums.add(metric.name, metric.sum, counts * metric.weight);
  }
  for (const data::MicroBatch& microbatch : batch.microbatches) {
    sums.add(kTokens, counts * static_cast<double>(microbatch.real_tokens),
             counts * static_cast<double>(microbatch.tokens()));
    sums.add(kTrained, counts * static_cast<double>(microbatch.loss_tokens), counts);
  }
  return sums;
}

// Hooks may be empty.
void call_hook(const std::function<void()>& event) {
  if (event) event();
}

}  // namespace

StepReport train_step(OptimizedModel& model, MicrobatchRunner& runner, RerunGuard& guard, const data::StepBatch& batch,
                      int64_t number, const StopFlag* stop, const StepEvents& events) {
  ResultCheck& results = guard.result_check();
  std::vector<MicrobatchLoss> losses;
  std::optional<optim::PendingUpdate> begun;
  bool announced = false;  // pre_optimizer_step has been called
  guard.run(number, [&] {
    begun.reset();
    model.zero_grad();
    // Ends where the host has to wait for the norm anyway.
    std::optional<ForbidDeviceWaits> search(std::in_place, looks_for_waits(number));
    results.begin(number, batch.microbatches.size());
    {
      const auto span = runner.trace().span({.name = "forward-backward", .level = 1});
      losses = runner.train(batch.microbatches,
                            {.chunks = model.chunks(),
                             .loss_scale = model.loss_scale(),
                             .substep_end = events.substep_end,
                             .on_loss = [&results](const MicrobatchLoss& loss) { results.add_loss(loss); }});
      results.check_losses();
    }
    {
      const auto span = runner.trace().span({.name = "all-grads-sync", .lane = TraceLane::kCommunication, .level = 1});
      model.finalize_gradients(trained_tokens(losses, runner));
    }
    // An update may start before the gradients have been checked only if it checks them itself, on the device.
    announced = model.begins_updates() && guard.only_non_finite_gradients_matter();
    if (announced) {  // the device continues while the host waits for the norm
      call_hook(events.pre_optimizer_step);
      begun = model.begin_update();
    }
    search.reset();
    model.check_gradients();
  });
  if (!announced) call_hook(events.pre_optimizer_step);
  // The scales of the next step come from this step's magnitudes. Before the update: parameters that are kept in fp8
  // are cast at its end.
  nn::end_fp8_step(model.models().parameters(), runner.context().group(layout::GroupKind::kTpDpCp));
  StepReport report;
  {
    const auto span = runner.trace().span({.name = "optimizer", .level = 1});
    report.update = model.update(batch.samples, begun);
  }
  call_hook(events.optimizer_step);

  std::vector<MetricTotal> totals =
      sums_of(losses, batch, runner, model.models(), stop).reduce(runner.context(), "loss of the step");
  report.loss = totals[0];
  report.real_tokens = static_cast<int64_t>(totals[1].sum);
  report.tokens = static_cast<int64_t>(totals[1].weight);
  report.trained_tokens = static_cast<int64_t>(totals[2].sum);
  report.stop = totals[3].sum > 0;
  report.clock_seconds = totals[4].mean();
  report.metrics.assign(std::make_move_iterator(totals.begin() + 5), std::make_move_iterator(totals.end()));
  if (!std::isfinite(report.loss.sum) && runner.speaks_for_replica()) results.warn_of_skipped_step();
  return report;
}

}  // namespace megalith::train
