// A rehearsal has two phases. Warm-up steps let kernels and allocators settle; from the last of them the time of a
// forward and of a backward pass is taken, which says when other stages would send (PipelineArrivals). Then steps are
// measured, each from an idle device to an idle device. A profile slows a step down, so it has its own, the last.
#include "megalith/run/rehearsal/rehearsal.h"

#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/task_progress.h"
#include "megalith/comm/world.h"
#include "megalith/config/derive.h"
#include "megalith/config/validate.h"
#include "megalith/io/file_io.h"
#include "megalith/layout/group_kind.h"
#include "megalith/observe/profile/profiler.h"
#include "megalith/observe/trace_export.h"
#include "megalith/observe/units.h"
#include "megalith/parallel/runtime.h"
#include "megalith/run/rehearsal/cluster_links.h"
#include "megalith/run/rehearsal/mock_training.h"
#include "megalith/run/rehearsal/pipeline_arrivals.h"
#include "megalith/run/rehearsal/tensor_memory.h"
#include "megalith/run/resolve/inputs.h"
#include "megalith/run/resolve/run_shape.h"
#include "megalith/run/run_report.h"

namespace megalith::run {

namespace {

// Returns the rehearsed rank. Throws ConfigError if there is no such rank or stage.
int chosen_rank(const RehearsalChoice& choice, const layout::RankGrid& grid) {
  check<ConfigError>(!choice.rank || !choice.stage, "rank and stage are both given; a stage stands for its first rank");
  const int world = grid.world_size(), pp = grid.shape().pp;
  if (choice.stage) {
    check<ConfigError>(*choice.stage >= 0 && *choice.stage < pp, "stage is {}; with pp {} it must be {}", *choice.stage,
                       pp, pp == 1 ? "0" : fmt::format("from 0 to {}", pp - 1));
    for (int rank = 0; rank < world; ++rank)
      if (grid.place(rank).pp_rank == *choice.stage) return rank;
  }
  const int64_t rank = choice.rank.value_or(0);
  check<ConfigError>(rank >= 0 && rank < world, "rank is {}; in a world of {} it must be {}", rank, world,
                     world == 1 ? "0" : fmt::format("from 0 to {}", world - 1));
  return static_cast<int>(rank);
}

// The rank's own collectives take no memory beyond their tensors, as with NCCL, whatever the device is.
plan::Machinery machinery_on(at::Device device) { return {.cuda = device.is_cuda()}; }

// Returns the bytes that are free for the rank; 0 when unknown.
double free_bytes(at::Device device) {
  if (!device.is_cuda()) return available_host_bytes();
  return static_cast<double>(at::accelerator::getMemoryInfo(device.index()).first);
}

plan::RankMemory planned_stage(const RehearsalRequest& request) {
  return plan::plan_memory(request.shape).at(static_cast<size_t>(request.place.pp_rank));
}

void check_rank_fits(const RehearsalRequest& request) {
  const double needed = planned_stage(request).peak(), usable = free_bytes(request.device);
  if (usable <= 0 || needed <= usable) return;
  const std::string shortage = fmt::format(
      "rank {} (stage {}) needs {} and {} has {} free", request.rank, request.place.pp_rank,
      observe::bytes_text(needed), request.device.is_cuda() ? "the GPU" : "this machine", observe::bytes_text(usable));
  check<ConfigError>(request.choice.force,
                     "{}; `megalith preview memory` shows the parts, `megalith plan` finds layouts that fit, --force"
                     " starts the rehearsal anyway",
                     shortage);
  log_warning("{}; --force: it is started anyway", shortage);
}

void synchronize(at::Device device) {
  if (device.is_cuda()) at::accelerator::synchronizeDevice(device.index());
}

double seconds_since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

// Returns the time of each pass of one micro-batch through one chunk, from the totals of a step's spans.
layout::PipelineCosts measured_costs(const std::vector<TraceRecorder::Total>& totals, layout::ScheduleKind schedule) {
  const auto total = [&](std::string_view name) {
    const auto found = std::ranges::find(totals, name, &TraceRecorder::Total::name);
    return found == totals.end() ? TraceRecorder::Total{} : *found;
  };
  const TraceRecorder::Total forward = total("forward-compute"), backward = total("backward-compute"),
                             weights = total("weight-gradient-compute"), pair = total("forward-backward-compute");
  const auto mean = [](const TraceRecorder::Total& t) {
    return t.seconds / static_cast<double>(std::max<int64_t>(1, t.count));
  };
  // A backward that is not split takes both of its parts.
  if (schedule == layout::ScheduleKind::kZeroBubble)
    return {.forward = mean(forward), .backward = mean(backward), .weight_gradient = mean(weights)};
  return {.forward = mean(forward),
          .backward = mean(backward) / 2,
          .weight_gradient = mean(backward) / 2,
          .saved_by_pair = pair.count == 0 ? 0 : mean(forward) + mean(backward) - mean(pair)};
}

// One rank among stand-ins.
class Rehearsal {
 public:
  explicit Rehearsal(const RehearsalRequest& request)
      : request_(request),
        links_(request.choice.cluster),
        memory_(std::in_place, request.device),
        others_(comm::make_stand_ins(
            {.lasts = [this](const comm::GroupInfo& group,
                             const comm::OpInfo& op) { return links_.seconds(group, op); },
             .sent = [this](const comm::GroupInfo& group, const comm::OpInfo& op) { return sent(group, op); }},
            request.device)),
        world_(comm::World::rehearse(request.rank, request.choice.world_size, {.device = request.device}, others_)),
        traced_(*world_, trace_),
        context_(*world_, layout::RankGrid(request.shape.grid), request.device) {
    context_.rng().seed(parallel::rng_seeds(request.settings.runtime.seeds, context_.grid(), request.rank));
  }

  RehearsalResult run() {
    RehearsalResult result;
    const bool pipeline = request_.shape.grid.pp > 1;
    const int64_t warm_up = pipeline ? 2 : 1, all = warm_up + request_.choice.steps;
    const bool profiles = !request_.choice.profile.empty();
    TaskProgress progress(fmt::format("rehearsing rank {} of {}", request_.rank, request_.choice.world_size),
                          TaskProgress::Unit::kCount, all + (profiles ? 1 : 0), "steps");
    MockTraining training(request_.settings, request_.shape, context_, trace_, request_.scoring);
    memory_->reset_peak();
    training.prepare();
    result.making_bytes = static_cast<double>(memory_->peak());
    memory_->reset_peak();
    for (int64_t step = 1; step <= all; ++step) {
      progress.set(step - 1);
      if (step == warm_up && pipeline) {
        calibrate(training);
        continue;
      }
      if (step == warm_up + 1) operations_before_ = world_->operation_totals();
      if (step == all && !request_.choice.trace.empty()) trace_.start_timeline();
      run_step(training, step > warm_up ? &result : nullptr);
    }
    result.step_bytes = static_cast<double>(memory_->peak());
    finish(result);
    progress.set(all);
    if (profiles) result.profile = profiled_step(training);
    return result;
  }

 private:
  // Only messages between stages depend on what other ranks do first; the bytes that open connections do not.
  double sent(const comm::GroupInfo& group, const comm::OpInfo& op) {
    const bool forward = group.name == "pp_forward";
    if (!arrivals_ || op.bytes <= 1 || (!forward && group.name != "pp_backward")) return 0;
    return arrivals_->next(forward, op.peer);
  }

  // Runs one step, and adds it to `result` unless that is nullptr.
  void run_step(MockTraining& training, RehearsalResult* result) {
    synchronize(request_.device);
    const auto begun = std::chrono::steady_clock::now();
    if (arrivals_) arrivals_->begin_step();
    others_->begin_step();
    const bool updated = training.step();
    synchronize(request_.device);
    const double seconds = seconds_since(begun);
    const auto waits = others_->take_waits();
    if (result == nullptr) return;
    result->step_s += seconds;
    result->skipped += updated ? 0 : 1;
    for (const auto& [group, wait] : waits) {
      result->waits[group].exposed += wait.exposed;
      result->waits[group].for_peers += wait.for_peers;
    }
  }

  // Measures the passes of a step in which no stage is late, and tells from them when other stages send.
  void calibrate(MockTraining& training) {
    trace_.set_timing_level(2);
    training.step();
    synchronize(request_.device);  // all spans and waits are known after it
    others_->take_waits();
    const std::vector<TraceRecorder::Total> totals = trace_.take_totals();
    trace_.set_timing_level(-1);
    layout::PipelineShape shape = request_.settings.trainer.step.shape(static_cast<int>(request_.shape.microbatches));
    shape.sync = layout::PipelineSync::kLeaveOut;
    layout::PipelineCosts costs = measured_costs(totals, shape.kind);
    const plan::RunShape& run = request_.shape;
    costs.transfer = plan::GroupSpeed(request_.choice.cluster, context_.pp().ranks()).message(run.stream_bytes());
    arrivals_.emplace(shape, request_.place.pp_rank, costs);
  }

  // Runs a step under the profiler, which takes the place of the memory's counter on this thread.
  observe::ProfileRecord profiled_step(MockTraining& training) {
    memory_.reset();
    observe::Profiler profiler(request_.device);
    trace_.set_annotate(observe::Profiler::annotate);
    run_step(training, nullptr);
    trace_.set_annotate({});
    return profiler.stop(request_.choice.profile);
  }

  // Turns sums into means, and adds the operations of the measured steps and the plan.
  void finish(RehearsalResult& result) {
    const auto steps = static_cast<double>(request_.choice.steps);
    result.step_s /= steps;
    for (auto& [group, wait] : result.waits) {
      result.exposed_s += wait.exposed /= steps;
      result.bubble_s += wait.for_peers /= steps;
    }
    for (const comm::OpTotal& total : measured_operations())
      result.communication.push_back({.group = total.group,
                                      .kind = total.kind,
                                      .operations = static_cast<double>(total.operations) / steps,
                                      .bytes = static_cast<double>(total.bytes) / steps,
                                      .lasts_s = links_.seconds(ranks_of(total.group), total) / steps});
    result.planned = plan::plan_stage_time(request_.shape, request_.choice.cluster, request_.place.pp_rank);
    result.planned_run_s = plan::plan_step_time(request_.shape, request_.choice.cluster).total();
    result.planned_memory = planned_stage(request_);
    write_timeline();
  }

  // Returns the operations since the first measured step began.
  std::vector<comm::OpTotal> measured_operations() const {
    std::vector<comm::OpTotal> totals = world_->operation_totals();
    for (comm::OpTotal& total : totals)
      for (const comm::OpTotal& earlier : operations_before_)
        if (earlier.group == total.group && earlier.kind == total.kind) {
          total.operations -= earlier.operations;
          total.bytes -= earlier.bytes;
        }
    std::erase_if(totals, [](const comm::OpTotal& total) { return total.operations == 0; });
    return totals;
  }

  // Returns the world ranks of a group of the rehearsed rank, by its name.
  std::vector<int> ranks_of(const std::string& group) const {
    if (const auto kind = layout::group_kind(group)) return context_.group(*kind).ranks();
    return group == "world" ? world_->world().ranks() : context_.pp().ranks();  // or messages between stages
  }

  // A world of one writes the timeline: the other ranks have none to collect.
  void write_timeline() {
    if (request_.choice.trace.empty()) return;
    trace_.stop_timeline();
    const auto alone = std::move(comm::World::in_process(1).front());
    const layout::RankPlace& place = request_.place;
    observe::write_trace(
        alone->world(), trace_,
        fmt::format("rank {} of {}: tp {}, pp {}, cp {}, dp {}", request_.rank, request_.choice.world_size,
                    place.tp_rank, place.pp_rank, place.cp_rank, place.dp_rank),
        request_.choice.trace);
  }

  const RehearsalRequest& request_;
  ClusterLinks links_;
  std::optional<PipelineArrivals> arrivals_;  // once the passes have been measured
  std::optional<TensorMemory> memory_;        // until the profiled step
  TraceRecorder trace_;
  const std::shared_ptr<comm::StandIns> others_;
  const std::unique_ptr<comm::World> world_;
  const WorldTrace traced_;
  parallel::ParallelContext context_;
  std::vector<comm::OpTotal> operations_before_;
};

}  // namespace

RehearsalRequest rehearsal_request(const config::TrainingArguments& options, const PlannedModel& model,
                                   const RehearsalChoice& choice) {
  check<ConfigError>(choice.steps >= 1 && choice.steps <= 1000, "steps is {}; it must be from 1 to 1000", choice.steps);
  check<ConfigError>(options.run.stage != config::Stage::kDpo,
                     "stage dpo cannot be rehearsed: its reference model is not mocked. Rehearse stage sft with twice"
                     " the sequences per micro-batch instead");
  check<ConfigError>(options.run.stage != config::Stage::kKto,
                     "stage kto cannot be rehearsed: its reference model is not mocked. Rehearse stage sft instead");
  check<ConfigError>(!options.distillation.teacher && !options.distillation.files,
                     "a run with a teacher cannot be rehearsed: the teacher is not mocked. Leave out"
                     " teacher_model_name_or_path and teacher_logits_path");
  config::validate(options, {.world_size = choice.world_size, .needs_inputs = false});
  config::TrainingArguments training = options;
  training.run.do_train = true;
  const config::EffectiveArguments effective = config::derive(training, model.config.moe.has_value());
  for (const std::string& warning : effective.warnings) log_warning("{}", warning);
  RehearsalRequest request;
  request.choice = choice;
  request.model = std::make_shared<const model::ModelConfig>(model.config);
  request.scoring = scoring_plan(effective.args, model.config);
  request.settings = run_settings(effective.args, {.size = choice.world_size, .one_machine = false});
  const layout::RankGrid grid(request.settings.shape.grid);
  request.rank = chosen_rank(choice, grid);
  request.place = grid.place(request.rank);
  parallel::apply_library_switches(request.settings.runtime.switches);
  request.device =
      parallel::enter_device({.gpus = parallel::visible_gpus(), .settings = request.settings.runtime.device});
  request.shape = closed_shape(request.settings.shape, *request.model, planned_length(effective.args),
                               machinery_on(request.device));
  check_rank_fits(request);
  if (!choice.profile.empty()) {
    io::make_folders(std::filesystem::absolute(choice.profile).parent_path());
    observe::Profiler::prepare(request.device);
  }
  return request;
}

RehearsalResult rehearse(const RehearsalRequest& request) {
  RehearsalResult result = Rehearsal(request).run();
  if (result.skipped > 0)
    log_warning(
        "the update was skipped in {} of {} measured steps, since gradients were not finite: its time is missing",
        result.skipped, request.choice.steps);
  return result;
}

}  // namespace megalith::run
