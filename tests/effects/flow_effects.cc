// How long a run is, and when it logs, evaluates, saves and stops.
#include <fmt/format.h>

#include "megalith/config/derive.h"
#include "megalith/run/resolve/data_settings.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/train/report/intervals.h"
#include "megalith/train/run_length.h"
#include "tests/effects/effect.h"

namespace megalith::testing {
namespace {

using config::Dialect;
using config::TrainingArguments;

train::TrainerSettings settings_of(const TrainingArguments& args) {
  return run::trainer_settings(config::derive(args).args, {.world_size = 1});
}

void append_flags(std::string& text, const train::TrainerControl& control, const std::string& when) {
  if (control.should_log) text += when + " log\n";
  if (control.should_evaluate) text += when + " evaluate\n";
  if (control.should_save) text += when + " save\n";
}

// A run of two epochs of ten steps.
std::string flow(const TrainingArguments& args) {
  const train::TrainerSettings settings = settings_of(args);
  train::TrainerState state;
  train::TrainerControl control;
  train::FlowCallback callback;
  state.max_steps = 20;
  train::resolve_intervals(settings, state);
  train::TrainerEvent event{settings, state, control};
  std::string text;
  while (state.global_step < 20 && !control.should_training_stop) {
    ++state.global_step;
    state.epoch = static_cast<double>(state.global_step) / 10;
    control.new_step();
    callback.on_step_end(event);
    append_flags(text, control, fmt::format("step {}", state.global_step));
    if (state.global_step % 10 != 0) continue;
    control.new_step();
    callback.on_epoch_end(event);
    append_flags(text, control, fmt::format("epoch {}", state.global_step / 10));
  }
  return text + fmt::format("end at {}", state.global_step);
}

// Two evaluations, the second with less loss and less accuracy.
std::string best(const TrainingArguments& args) {
  const train::TrainerSettings settings = settings_of(args);
  train::TrainerState state;
  train::TrainerControl control;
  std::string text;
  for (const auto& [loss, accuracy] : {std::pair{2.0, 0.5}, {1.0, 0.4}}) {
    ++state.global_step;
    note_evaluation(settings, {{"eval_loss", loss}, {"eval_accuracy", accuracy}}, state, control);
    text += fmt::format("{} at {}, save {}\n", state.best_metric.value_or(-1), state.best_global_step.value_or(-1),
                        control.should_save);
  }
  return text;
}

std::string length(const TrainingArguments& args) {
  const TrainingArguments effective = config::derive(args).args;
  const data::Sampler sampler(run::epoch_sampler(effective.sampler, 100, 1));
  const train::TrainerSettings settings = settings_of(args);
  const train::RunLength run =
      train::run_length(settings.length, layout::MicrobatchCalculator(settings.batch), sampler);
  return fmt::format("{} steps, {} epochs", run.max_steps, run.num_train_epochs);
}

}  // namespace

Effects flow_effects() {
  const Words by_steps{"--eval_strategy=steps", "--eval_steps=5"};
  return {
      {"num_train_epochs", {}, {}, {"--num_train_epochs=2"}, length},
      {"max_steps", {}, {}, {"--max_steps=7"}, length},
      {"exit_interval", {}, {}, {"--exit_interval=3"}, flow, Dialect::kPretrain},
      {"logging_strategy", {"--logging_steps=4"}, {}, {"--logging_strategy=epoch"}, flow},
      {"logging_steps", {}, {}, {"--logging_steps=4"}, flow},
      {"logging_first_step", {}, {}, {"--logging_first_step"}, flow},
      {"eval_strategy", {"--eval_steps=5"}, {}, {"--eval_strategy=epoch"}, flow},
      {"eval_steps", {"--eval_strategy=steps"}, {}, {"--eval_steps=5"}, flow},
      {"eval_delay", by_steps, {}, {"--eval_delay=12"}, flow},
      {"save_strategy", {"--save_steps=4"}, {}, {"--save_strategy=epoch"}, flow},
      {"save_steps", {}, {}, {"--save_steps=4"}, flow},
      {"output_dir", {"--save_interval=4"}, {}, {"--save=somewhere"}, flow, Dialect::kPretrain},
      {"metric_for_best_model", {}, {"--metric_for_best_model=loss"}, {"--metric_for_best_model=accuracy"}, best},
      {"greater_is_better", {"--metric_for_best_model=loss"}, {}, {"--greater_is_better=true"}, best},
  };
}

}  // namespace megalith::testing
