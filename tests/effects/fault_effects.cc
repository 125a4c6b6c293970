// Options that act when a result is bad, a rank slow, or a collective late.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <atomic>
#include <thread>

#include "megalith/observe/observers.h"
#include "megalith/observe/straggler.h"
#include "megalith/run/ft_state.h"
#include "megalith/run/launch_flags.h"
#include "tests/effects/effect.h"
#include "tests/support/temp_folder.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

using config::TrainingArguments;

// Counts runs of forward and backward; the one of number `spiky` has 50 times the loss; from `late` on rank 1 comes
// late.
class WatchedObjective : public train::Objective {
 public:
  WatchedObjective(std::atomic<int>& runs, int rank, int spiky, int late)
      : total_(runs), rank_(rank), spiky_(spiky), late_(late) {}
  void begin(std::span<const data::MicroBatch>, train::Phase phase) override {
    if (phase != train::Phase::kTraining) return;
    ++run_;
    if (rank_ == 0) ++total_;
    if (rank_ == 1 && run_ >= late_) std::this_thread::sleep_for(std::chrono::milliseconds(1300));
  }
  train::MicrobatchLoss loss(const train::MicrobatchOutput& output, const data::MicroBatch& batch, int microbatch,
                             train::Phase phase) const override {
    train::MicrobatchLoss loss = Objective::loss(output, batch, microbatch, phase);
    if (run_ == spiky_) loss.sum = (loss.sum + 1) * 1e6;
    return loss;
  }

 private:
  std::atomic<int>& total_;
  const int rank_, spiky_, late_;
  int run_ = 0;
};

constexpr int kNever = 1 << 20;

std::string run_with_faults(const TrainingArguments& args, int dp, int steps, int spiky, int late) {
  TrainerCase how{.dp = dp};
  how.args = args;
  how.args.run.max_steps = steps;
  how.args.save.output_dir.reset();
  std::atomic<int> runs = 0;
  std::string end = "finished";
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(16, 50, 1)));
    setup.objective = std::make_unique<WatchedObjective>(runs, r.rank.rank, spiky, late);
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    std::string mine = "finished";
    try {
      trainer.train();
    } catch (const train::RerunExit& exit) {
      mine = fmt::format("exit {}", exit.facts().exit_code);
    } catch (const CommError&) {
      mine = "too late";
    }
    if (r.rank.rank == 0) end = mine;
  });
  return fmt::format("{} runs, {}", runs.load(), end);
}

std::string short_run(const TrainingArguments& args) { return run_with_faults(args, 1, 4, kNever, kNever); }
std::string spiky_run(const TrainingArguments& args) { return run_with_faults(args, 1, 110, 105, kNever); }
std::string late_run(const TrainingArguments& args) { return run_with_faults(args, 2, 3, kNever, 3); }

// The second replica changes a weight after its first step.
class BreakingCallback : public train::TrainerCallback {
 public:
  explicit BreakingCallback(model::VirtualModels& models) : models_(models) {}
  void on_step_end(train::TrainerEvent& event) override {
    if (event.state.global_step == 1) models_.parameters().front()->value.detach().flatten()[0].add_(1);
  }

 private:
  model::VirtualModels& models_;
};

std::string broken_run(const TrainingArguments& args) {
  TrainerCase how{.dp = 2};
  how.args = args;
  how.args.run.max_steps = 4;
  how.args.save.output_dir.reset();
  std::string end = "finished";
  run_trainer_ranks(golden_folder("llama"), how, [&](const TrainerRank& r) {
    train::TrainerSetup setup = r.setup(dataset_of(random_sequences(16, 50, 1)));
    if (r.rank.rank == 1) setup.callbacks.push_back(std::make_unique<BreakingCallback>(r.models));
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    try {
      trainer.train();
    } catch (const CommError& error) {
      if (r.rank.rank == 0) end = error.what();
    }
  });
  return end;
}

std::string limits(const TrainingArguments& args) {
  run::LaunchFlags launch;
  launch.rank_section_timeouts = "setup:60,step:5";
  launch.look_after(args.fault);
  return fmt::format("{}", launch.limits()->of(comm::Section::kStep, 3).count());
}

// A limit that an earlier run has learned; whether the next one uses it.
std::string learned_limit(const TrainingArguments& args) {
  const TempFolder folder;
  run::write_ft_state(folder / run::kFtStateFile, {.step = comm::LearnedLimits::Seconds(7)});
  run::RunSettings settings = run::run_settings(args, {});
  settings.output.folder = folder.path();
  run::LaunchFlags launch;
  launch.nproc = 1;
  launch.look_after(args.fault);
  launch.learn_limits(settings);
  return fmt::format("{}", launch.limits()->of(comm::Section::kStep, 20).count());
}

// The metrics of a line that the observers of a run have seen.
std::string line_of_observers(const TrainingArguments& args) {
  const auto worlds = comm::World::in_process(1);
  observe::ObserverSetup setup;
  setup.world = worlds[0]->world();
  setup.waited_seconds = [] { return 0.0; };
  setup.progress.write = [](std::string_view) {};
  TrainingArguments unsaved = args;
  unsaved.save.output_dir.reset();
  train::CallbackList list;
  for (auto& callback : observe::make_observers(run::report_settings(unsaved, {.world_size = 1}), setup))
    list.add(std::move(callback));
  train::TrainerState state;
  train::TrainerControl control;
  const train::TrainerSettings settings;
  train::TrainerEvent event{settings, state, control};
  event.metrics = {{"loss", 2.5}};
  for (const auto what :
       {&train::TrainerCallback::on_step_begin, &train::TrainerCallback::on_step_end, &train::TrainerCallback::on_log})
    list.call(what, event);
  std::string names;
  for (const auto& [name, value] : event.metrics) names += name + "\n";
  return names;
}

std::string named_ranks(const TrainingArguments& args) {
  return observe::straggler_report({{0, 1, 0}, {1, 2, 0}, {2, 3, 0}}, args.fault.straggler_minmax_count).text;
}

}  // namespace

Effects fault_effects() {
  const Words small{"--finetuning_type=full", "--per_device_train_batch_size=2", "--learning_rate=1e-3",
                    "--save_strategy=no",     "--lr_scheduler_type=constant",    "--logging_steps=1"};
  const auto also = [&](const std::string& more) {
    Words words = small;
    words.push_back(more);
    return words;
  };
  return {
      {"rerun_mode", small, {"--rerun_mode=disabled"}, {"--rerun_mode=report_determinism_stats"}, short_run},
      {"error_injection_rate", small, {}, {"--error_injection_rate=1"}, short_run},
      {"error_injection_type",
       also("--error_injection_rate=1"),
       {},
       {"--error_injection_type=persistent_error"},
       short_run},
      {"check_for_spiky_loss", small, {}, {"--check_for_spiky_loss"}, spiky_run},
      {"check_for_large_grads", small, {}, {"--check_for_large_grads"}, spiky_run},
      {"ft_num_warmup_iters", {}, {}, {"--ft_num_warmup_iters=2"}, limits},
      {"calc_ft_timeouts", {}, {}, {"--calc_ft_timeouts"}, learned_limit},
      {"log_straggler", {}, {}, {"--log_straggler"}, line_of_observers},
      {"straggler_minmax_count", {}, {}, {"--straggler_minmax_count=2"}, named_ranks},
      {"check_weight_hash_across_dp_replicas_interval",
       small,
       {},
       {"--check_weight_hash_across_dp_replicas_interval=2"},
       broken_run},
      {"distributed_timeout_seconds_after_init", small, {}, {"--distributed_timeout_seconds_after_init=1"}, late_run},
  };
}

}  // namespace megalith::testing
