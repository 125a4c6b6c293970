// Runs a resolved plan. The layers around the work of a rank, from outside in:
//
//   launch_run       start the ranks, or be one
//   StopOnSignal     before any other thread of the rank exists
//   run_as_rank      connect, make groups, report failures to the other ranks
//   start_run        agree on which start of the job this is; check the output folder; open the log
//   check_memory, explain_out_of_memory
//   train_on_rank, pretrain_on_rank
//
// A job may be started again after a failure, by our launcher or by torchrun. It then continues from its own newest
// checkpoint, whatever the options say about resuming.
#include "megalith/run/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "megalith/base/allocator.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/comm/store/start_record.h"
#include "megalith/run/continuation.h"
#include "megalith/run/exit_code.h"
#include "megalith/run/load_model.h"
#include "megalith/run/out_of_memory.h"
#include "megalith/run/plan_inputs.h"
#include "megalith/run/rank_main.h"
#include "megalith/run/resolve/load.h"
#include "megalith/run/resolve/output_folder.h"
#include "megalith/run/run_data.h"
#include "megalith/run/run_report.h"
#include "megalith/run/signals.h"
#include "megalith/run/teacher_logits.h"
#include "megalith/train/kept_state.h"
#include "megalith/train/saving/shared_folder.h"
#include "megalith/train/simulated_fault.h"

namespace megalith::run {

namespace {

namespace fs = std::filesystem;

// A run on a connected rank, after all ranks have agreed which start of the job this is.
struct StartedRun {
  const RunPlan& plan;
  comm::RankLaunch launch;
  const train::StopFlag& stop;
  parallel::ParallelContext& context;
  train::KeptState* kept;  // with inprocess_restart: what this process keeps from one start to the next; else nullptr
  bool continues_itself;   // the job was restarted and has saved a checkpoint: it continues from there

  // Returns the effective resume_from_checkpoint.
  std::optional<std::string> resume() const {
    return continues_itself ? std::optional<std::string>("auto") : plan.settings.resume;
  }
};

// Checks output_dir if that was not possible before ranks were connected, and that all machines see the same folder;
// then opens the rank's log in it. All ranks call it. Throws ConfigError.
StartedRun start_run(const RunPlan& plan, comm::RankLaunch launch, const train::StopFlag& stop,
                     parallel::ParallelContext& context, train::KeptState& kept) {
  const comm::Rendezvous& rendezvous = context.world().place();
  comm::StartRecord* record = context.world().record();  // counts torchrun's starts; nullptr with our launcher
  if (record != nullptr) {
    launch.restarts = record->continues(rendezvous.restarts) ? rendezvous.restarts : 0;
    if (rendezvous.rank == 0) {
      launch = record->complete(std::move(launch));
      launch.on_step = [record](const comm::Attempt& done) { record->note(done); };
    }
  }
  const OutputSettings& output = plan.settings.output;
  const fs::path& rolling = plan.settings.trainer.save.rolling.folder;
  const bool continues_itself = launch.restarts > 0 && (holds_checkpoints(output.folder) || holds_checkpoints(rolling));
  if (record != nullptr && rendezvous.rank == 0) {
    check_output_folder(output, launch.restarts == 0);
    record->begin();
  }
  train::KeptState* const keeps = launch.wait_for_next_start ? &kept : nullptr;
  StartedRun run{plan, std::move(launch), stop, context, keeps, continues_itself};
  if (output.folder.empty()) return run;
  if (record != nullptr) context.world().world().barrier("output_dir");
  train::check_shared_folder(output.folder, context.world());
  if (!rolling.empty()) train::check_shared_folder(rolling, context.world());
  // From now on this rank's messages are also kept in its log.
  add_log_file(output.folder / "log" / fmt::format("rank-{}.log", rendezvous.rank));
  return run;
}

void log_warnings(const RunPlan& plan) {
  for (const std::string& warning : plan.warnings) log_warning("{}", warning);
}

// Does what every run that trains needs around `work`.
int launch_run(const RunPlan& plan, LaunchFlags launch, const std::function<void(StartedRun&)>& work) {
  log_warnings(plan);
  make_output_folder(plan.settings.output);
  launch.ends_in_order = true;
  launch.learn_limits(plan.settings);
  return launch.run([&](const comm::RankLaunch& given) {
    // Without a launcher nobody looks at the signs of life but StopOnSignal.
    comm::RankLaunch first = given;
    comm::HeartbeatSlot own_slot;
    if (first.heartbeat.slot() == nullptr) first.heartbeat = comm::Heartbeat(own_slot);
    const StopOnSignal stop(*first.heartbeat.slot());
    train::KeptState kept;
    const auto start = [&](const comm::RankLaunch& started, parallel::ParallelContext& context) {
      StartedRun run = start_run(plan, started, stop.flag(), context, kept);
      check_memory(plan.settings, plan.model.config, context);
      for (const std::string& note : {overlap_note(plan.settings, plan.model.config, context.device()),
                                      expert_overlap_note(plan.settings, plan.model.config)})
        if (context.rank() == 0 && !note.empty()) log_warning("{}", note);
      const auto facts = [&] { return memory_facts(plan.settings, plan.model.config, context); };
      explain_out_of_memory(plan.settings.shape, facts, [&] { work(run); });
    };
    return run_as_rank(plan.settings.runtime, first, start);
  });
}

RunData open_data(const RunPlan& plan, const parallel::ParallelContext& context) {
  RunData data = open_run_data(plan.data, context.rank() == 0);
  const std::string lengths = check_sample_lengths(data, plan.data, plan.model.config);
  if (context.rank() == 0 && !lengths.empty()) log_warning("{}", lengths);
  if (context.rank() == 0)
    for (const std::string& report : data.reports) log_info("{}", report);
  return data;
}

// Returns whether the model has already been evaluated in its present state.
bool is_evaluated(const train::Trainer& trainer) {
  if (trainer.settings().eval.loads_best_at_end) return false;  // another model than that of the last step
  const train::TrainerState& state = trainer.state();
  const auto step = static_cast<double>(state.global_step);
  return std::ranges::any_of(state.log_history, [&](const train::MetricList& line) {
    return line.find("step") == step && line.find("eval_runtime");
  });
}

// The last line of a run that was asked to stop.
void print_continuation(const RunPlan& plan, const parallel::ParallelContext& context) {
  const std::string line = fmt::format("continue    {}\n", how_to_continue(plan));
  if (context.rank() == 0) write_to_stderr(line);
  log_to_file(line);
}

// A script must be able to see that a checkpoint is missing that nothing will write again.
void require_saved(const RunSettings& settings, const std::string& error) {
  check<NotSaved>(error.empty(), "the run is complete and its model is in {}, but the last checkpoint is missing: {}",
                  settings.output.folder.string(), error);
}

// Trains and exports, then evaluates if requested.
void use_trainer(const RunPlan& plan, train::Trainer& trainer, bool evaluates) {
  const RunSettings& settings = plan.settings;
  std::string unsaved;
  if (settings.trains) {
    const train::TrainOutput output = trainer.train();
    if (!settings.output.folder.empty()) trainer.save_model(settings.output.folder);
    print_end(trainer.models().context(), settings.reports, trainer.state(), output);
    if (output.interrupted) return print_continuation(plan, trainer.models().context());
    unsaved = output.last_save_error;
  }
  if (evaluates && !is_evaluated(trainer)) trainer.evaluate();
  require_saved(settings, unsaved);
}

// Prompts come from the evaluation data, which the model does not learn by heart, or else from the training data.
std::shared_ptr<const train::TextSampler> text_sampler(const RunPlan& plan, const RunData& data) {
  const RunVocabulary& vocabulary = plan.model.vocabulary;
  const data::Dataset* prompts = !data.eval.empty() ? data.eval.front().dataset.get()
                                 : data.train       ? data.train->dataset.get()
                                                    : nullptr;
  return make_text_sampler(plan.settings.samples, {vocabulary.tokenizer, vocabulary.tokenizer_folder}, prompts);
}

void train_on_rank(StartedRun& run) {
  const RunPlan& plan = run.plan;
  parallel::ParallelContext& context = run.context;
  RunData data = open_data(plan, context);
  const auto sampler = text_sampler(plan, data);
  const auto checkpoint = find_resume(run.resume(), plan.settings.output.folder, context);
  precompute_reference(plan, context, data);
  attach_teacher_files(plan, context, data);
  model::VirtualModels models = load_model(plan.model, plan.settings.model, context, checkpoint);
  TraceRecorder trace;
  train::TrainerSetup setup{.train_data = std::move(data.train),
                            .eval_data = std::move(data.eval),
                            .objective = make_objective(plan, models),
                            .rates = plan.own.rates,
                            .updates_may_overlap = !plan.own.callbacks && !plan.own.objective,
                            .text_sampler = sampler,
                            .stop = &run.stop,
                            .heartbeat = run.launch.heartbeat,
                            .assets = plan.model.vocabulary.assets(plan.model.folder),
                            .rejection_tracker = plan.settings.switches.rejection_tracker,
                            .kept = run.kept,
                            .trace = &trace};
  if (checkpoint) setup.resume = train::read_resume_point(*checkpoint, plan.settings.trainer, context);
  const auto fault = train::simulate_fault_from_env(context, run.launch.restarts, setup);
  const WorldTrace traced(context.world(), trace);
  const DataSummary summary{std::move(data.described), plan.data.request.data.cutoff_len, data.left_out};
  for (auto& callback : watch_run(models, plan.settings, summary, trace, run.launch))
    setup.callbacks.push_back(std::move(callback));
  if (plan.own.callbacks)
    for (auto& callback : plan.own.callbacks(models)) setup.callbacks.push_back(std::move(callback));
  const bool evaluates = plan.settings.evaluates && !setup.eval_data.empty();
  train::Trainer trainer(models, plan.settings.trainer, std::move(setup));
  use_trainer(plan, trainer, evaluates);
}

std::vector<std::pair<std::string, std::string>> describe(const data::PerSplit<int64_t>& samples, int64_t evaluation) {
  return {{"train", fmt::format("{} samples", samples[0])},
          {"evaluation", fmt::format("{} samples each time", evaluation)}};
}

void pretrain_on_rank(StartedRun& started, PretrainFunctions functions) {
  RunSettings settings_now = started.plan.settings;
  if (started.launch.restarts > 0) settings_now.trainer.save.rolling.local.loads = true;
  if (started.continues_itself) {
    LoadSettings& load = settings_now.pretrain.load;
    load.folder = settings_now.output.folder;
    if (const fs::path& rolling = settings_now.trainer.save.rolling.folder; !rolling.empty()) load.rolling = rolling;
  }
  RunContext run(started.plan.options, std::move(settings_now),
                 {.stop = &started.stop,
                  .heartbeat = started.launch.heartbeat,
                  .rejection_tracker = started.plan.settings.switches.rejection_tracker,
                  .kept = started.kept,
                  .context = &started.context});
  const WorldTrace traced(started.context.world(), run.timers());
  run.finish_mpu_init();
  functions.updates_may_overlap = functions.updates_may_overlap || !functions.callbacks;
  functions.callbacks = [&, own = functions.callbacks](RunContext& mine, model::VirtualModels& models) {
    const RunSettings& settings = mine.settings();
    const DataSummary data{
        describe(samples_needed(settings, mine.microbatches()), samples_of_evaluation(settings.pretrain)),
        settings.pretrain.seq_length};
    auto callbacks = watch_run(models, mine.settings(), data, mine.timers(), started.launch);
    if (own)
      for (auto& callback : own(mine, models)) callbacks.push_back(std::move(callback));
    return callbacks;
  };
  const PretrainOutput output = pretrain(run, std::move(functions));
  if (output.end != PretrainEnd::kSkipped)
    print_end(started.context, run.settings().reports, output.state, output.training);
  if (const auto loss = output.test.find("test_loss"); loss && started.context.rank() == 0)
    log_info("loss on the test set: {:.6E}", *loss);
  if (output.training.interrupted) return print_continuation(started.plan, started.context);
  require_saved(run.settings(), output.training.last_save_error);
}

}  // namespace

int run_program(const std::function<int()>& work) {
  keep_freed_memory();
  int code = kDone;
  try {
    code = work();
  } catch (const std::exception& error) {
    fmt::print(stderr, "megalith: {}\n", error_text(error));
    code = exit_code_of(error);
  }
  // Threads of libtorch outlive main. If one of them ends while the exit handlers of the CUDA driver unload its
  // compiler, the process crashes after it has done all its work. So exit handlers are skipped.
  if (comm::nccl_available()) {
    std::fflush(nullptr);
    std::_Exit(code);
  }
  return code;
}

int launch_training(const RunPlan& plan, LaunchFlags launch) {
  return launch_run(plan, std::move(launch), train_on_rank);
}

int launch_pretraining(const RunPlan& plan, LaunchFlags launch, const PretrainFunctions& functions) {
  return launch_run(plan, std::move(launch), [&](StartedRun& run) { pretrain_on_rank(run, functions); });
}

int launch_evaluation(const RunPlan& plan, const LaunchFlags& launch,
                      const std::function<void(const train::MetricList& metrics)>& report) {
  log_warnings(plan);
  return launch.run([&] {
    return run_as_rank(plan.settings.runtime, [&](parallel::ParallelContext& context) {
      RunData data = open_run_data(plan.data, context.rank() == 0);
      precompute_reference(plan, context, data);
      attach_teacher_files(plan, context, data);
      model::VirtualModels models = load_model(plan.model, plan.settings.model, context);
      train::TrainerSetup setup{.eval_data = std::move(data.eval), .objective = make_objective(plan, models)};
      train::Trainer trainer(models, plan.settings.trainer, std::move(setup));
      const train::MetricList metrics = trainer.evaluate();
      if (context.rank() == 0) report(metrics);
    });
  });
}

}  // namespace megalith::run
