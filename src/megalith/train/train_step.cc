// One step: forward and backward under the guard, reduction of gradients, one all-reduce for all numbers that ranks
// have to agree on (StepTotals), update.
//
//   host    queue passes, reductions, totals, update │ wait for the totals │ report, queue gathers and the next step
//   device  passes ─► reductions ─► totals ─► update ───────────────────────► gathers ─► …
//
// The host waits for the device only once per step, and the device has the update to run meanwhile. It decides by
// itself whether to apply it: the totals hold the gradient norm and the veto of any rank.
#include "megalith/train/train_step.h"

#include <algorithm>
#include <cmath>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/comm/store/heartbeat.h"
#include "megalith/model/model_flops.h"
#include "megalith/nn/tensor_parallel/fp8_history.h"
#include "megalith/train/device/device_waits.h"
#include "megalith/train/step/routing_step.h"
#include "megalith/train/step/step_totals.h"

namespace megalith::train {

namespace {

// Names of the sums that every step has, in the order in which train_step reads them.
constexpr const char* kLossSum = "loss";
constexpr const char* kTokens = "tokens of the step";  // sum: without padding, weight: with
constexpr const char* kTrained = "tokens with a label";
constexpr const char* kTowers = "FLOPs of towers";
constexpr const char* kMedia = "images and videos";  // sum: of the step, weight: tokens that stand for any medium
constexpr const char* kSounds = "sounds";
constexpr const char* kStop = "stop requests";
constexpr const char* kClock = "clocks of all ranks";

// The first steps try out kernels and fill caches. After them, MEGALITH_FORBID_DEVICE_WAITS=1 makes any wait for the
// device but that for the totals an error (for tests).
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

// On the host, like all of a micro-batch that its collator made.
int64_t media_tokens_of(const data::MicroBatch& batch) {
  int64_t count = 0;
  for (const at::Tensor& rows : {batch.visual_rows, batch.audio_rows})
    if (rows.defined()) count += rows.ge(0).sum().item<int64_t>();
  return count;
}

// Collects this rank's share of all reported numbers. Every rank adds those of its routers. On the last stage every
// context-parallel rank adds its part of the losses, but only the first one adds counts: the others count the same
// tokens. The list of names must be the same on every rank, so it is made from the configuration, not from what this
// rank saw.
MetricSums sums_of(const model::VirtualModels& models, const std::vector<MicrobatchLoss>& losses,
                   const data::StepBatch& batch, const MicrobatchRunner& runner, const StopFlag* stop) {
  std::vector<std::string> names{kLossSum, kTokens, kTrained, kTowers, kMedia, kSounds, kStop, kClock};
  for (std::string& key : runner.objective().metrics_keys(Phase::kTraining)) names.push_back(std::move(key));
  for (std::string& name : runner.attached_losses()) names.push_back(std::move(name));
  const bool per_layer = runner.router_losses_by_layer();
  for (std::string& name : routing_metrics(models.config(), per_layer)) names.push_back(std::move(name));
  MetricSums sums(std::move(names));
  add_routing_metrics(models, sums, per_layer);
  if (stop && stop->requested()) sums.add(kStop, 1, 1);
  sums.add(kClock, static_cast<double>(comm::monotonic_ns()) / 1e9, 1);
  if (!runner.speaks_for_replica()) return sums;  // only the clock and the stop request concern all ranks
  const double counts = runner.counts_for_replica() ? 1 : 0;
  // In fp64, as the host would divide. Tensors stay on the device.
  const auto add = [&](const std::string& name, const at::Tensor& sum, int64_t count) {
    if (runner.per_token_loss())
      sums.add(name, sum, counts * static_cast<double>(count));
    else
      sums.add(name, sum.detach().to(at::kDouble).div(static_cast<double>(std::max<int64_t>(count, 1))), counts);
  };
  for (const MicrobatchLoss& loss : losses) {
    add(kLossSum, loss.sum, loss.count);
    for (const AttachedLoss& attached : loss.attached) add(attached.name, attached.sum, attached.count);
    for (const MicrobatchMetric& metric : loss.metrics) sums.add(metric.name, metric.sum, counts * metric.weight);
  }
  for (const data::MicroBatch& microbatch : batch.microbatches) {
    sums.add(kTokens, counts * static_cast<double>(microbatch.real_tokens),
             counts * static_cast<double>(microbatch.tokens()));
    sums.add(kTrained, counts * static_cast<double>(microbatch.loss_tokens), counts);
    // Micro-batches that only fill up a step repeat media.
    const auto count = [](const at::Tensor& list) { return list.defined() ? static_cast<double>(list.size(0)) : 0; };
    const double images = count(microbatch.grids), sounds = count(microbatch.audio_lengths);
    if (microbatch.real_tokens == 0 || images + sounds == 0) continue;
    const model::FreezePlan& freeze = models[0].options().freeze;
    const double flops = model::vision_flops(models.config(), freeze, microbatch.grids) +
                         model::audio_flops(models.config(), freeze, microbatch.audio_lengths);
    sums.add(kTowers, counts * flops, counts);
    sums.add(kMedia, counts * images, counts * static_cast<double>(media_tokens_of(microbatch)));
    sums.add(kSounds, counts * sounds, counts);
  }
  return sums;
}

// Reads what sums_of has named.
void read_totals(std::vector<MetricTotal> totals, StepReport& report) {
  report.loss = totals[0];
  report.real_tokens = static_cast<int64_t>(totals[1].sum);
  report.tokens = static_cast<int64_t>(totals[1].weight);
  report.trained_tokens = static_cast<int64_t>(totals[2].sum);
  report.tower_flops = totals[3].sum;
  report.media = static_cast<int64_t>(totals[4].sum);
  report.media_tokens = static_cast<int64_t>(totals[4].weight);
  report.sounds = static_cast<int64_t>(totals[5].sum);
  report.stop = totals[6].sum > 0;
  report.clock_seconds = totals[7].mean();
  report.metrics.assign(std::make_move_iterator(totals.begin() + 8), std::make_move_iterator(totals.end()));
}

// Hooks may be empty.
void call_hook(const std::function<void()>& event) {
  if (event) event();
}

// Returns the tokens of this rank in the first micro-batch, which the next step's is expected to have, too. 0 with
// graphs, whose replay does not wait for the parameters of single parts.
int64_t tokens_before_waits(const MicrobatchRunner& runner, const data::StepBatch& batch) {
  if (runner.uses_graphs() || batch.microbatches.empty()) return 0;
  return batch.microbatches[0].tokens() / runner.context().grid().shape().cp;
}

std::vector<MicrobatchLoss> run_microbatches(const OptimizedModel& model, MicrobatchRunner& runner,
                                             ResultCheck& results, const data::StepBatch& batch,
                                             const StepEvents& events) {
  const auto span = runner.trace().span({.name = "forward-backward", .level = 1});
  return runner.train(batch.microbatches,
                      {.chunks = model.chunks(),
                       .loss_scale = model.loss_scale(),
                       .substep_end = events.substep_end,
                       .on_loss = [&results](const MicrobatchLoss& loss) { results.add_loss(loss); },
                       .gathers_params = model.gathers_in_forward()});
}

}  // namespace

StepReport train_step(OptimizedModel& model, MicrobatchRunner& runner, RerunGuard& guard, const data::StepBatch& batch,
                      int64_t number, const StopFlag* stop, const StepEvents& events) {
  const parallel::ParallelContext& context = runner.context();
  ResultCheck& results = guard.result_check();
  std::optional<StepTotals> totals;
  bool begun = false;  // the update has been queued, and pre_optimizer_step called
  model.expect_tokens(tokens_before_waits(runner, batch));
  guard.run(number, [&] {
    begun = false;
    model.zero_grad();
    begin_routing_step(model.models());
    std::optional<ForbidDeviceWaits> search(std::in_place, looks_for_waits(number));
    results.begin(number, batch.microbatches.size());
    // An update may be queued before the results have been read only if the device can judge them. The same on all
    // ranks.
    const bool ahead = model.begins_updates() && guard.update_may_be_queued();
    const bool unread = ahead && model.checks_gradients_later();  // on the CPU the host looks at once: it costs nothing
    const bool losses_first = !unread || guard.checks_losses_first();
    const std::vector<MicrobatchLoss> losses = run_microbatches(model, runner, results, batch, events);
    if (losses_first) results.check_losses();
    {
      const auto span = runner.trace().span({.name = "all-grads-sync", .lane = TraceLane::kCommunication, .level = 1});
      model.finalize_gradients(trained_tokens(losses, runner));
    }
    if (!ahead) model.check_gradients();
    totals.emplace(StepTotals::Share{.veto = results.veto(losses, unread, context.device()),
                                     .terms = model.norm_terms(),
                                     .metrics = sums_of(model.models(), losses, batch, runner, stop),
                                     .loads = expert_loads(model.models())},
                   context);
    if (ahead) {  // the device continues while the host waits for the totals
      call_hook(events.pre_optimizer_step);
      begun = true;
      model.begin_update(totals->squares());
    }
    search.reset();
    const bool vetoed = totals->vetoed();  // the only wait
    if (!losses_first) results.check_losses();
    if (ahead) model.check_gradients();
    // Another rank is about to end the run with the reason.
    if (vetoed && results.throws()) context.world().world().barrier("validation of the step");
    guard.set_verdict(vetoed);
  });
  if (!begun) call_hook(events.pre_optimizer_step);
  StepReport report;
  {
    const ForbidDeviceWaits search(begun && looks_for_waits(number));
    // The scales of the next step come from this step's magnitudes. Before parameters are gathered: those that are kept
    // in fp8 are cast there.
    nn::end_fp8_step(model.models().parameters(), context.group(layout::GroupKind::kTpDpCp));
    const auto span = runner.trace().span({.name = "optimizer", .level = 1});
    report.update = model.update(batch.samples, totals->stats(), begun);
  }
  call_hook(events.optimizer_step);
  read_totals(totals->metrics(), report);
  set_max_load(report.metrics, totals->loads_on_host());
  end_routing_step(model.models(), totals->loads());  // routers change with the step, so only once it is accepted
  if (!std::isfinite(report.loss.sum) && runner.speaks_for_replica()) results.warn_of_skipped_step();
  return report;
}

}  // namespace megalith::train
