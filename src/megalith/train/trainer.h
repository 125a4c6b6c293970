// Trainer: the training loop (the reference's McaTrainer).
//
//   Trainer trainer(models, settings, {.train_data = numbered_data(dataset, order, collator), .eval_data = {{…}}});
//   trainer.train();                        // epochs of steps, with log lines, evaluations and save points
//   trainer.save_model("my-model");
//
// What happens in a step is in train_step.h, how samples become micro-batches in data/collator.h (the place for a
// collator of one's own), what is optimised in objective.h (the place to override inputs, loss and metrics), when
// something happens in callback.h and flow_callback.h, what a line says in training_log.h.
//
// Save points. output_dir/checkpoint-S holds the model as a Hugging Face folder and all that a run needs to go on
// (docs/checkpoint-format.md). read_resume_point (run_checkpoint.h) reads it; it comes back through
// TrainerSetup::resume, before the first step. A save point can be written while training goes on
// (SaveSettings::in_background): on_save is called when it is complete, at the end of a later step.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/comm/store/heartbeat.h"
#include "megalith/layout/microbatches.h"
#include "megalith/model/virtual_models.h"
#include "megalith/optim/lr_schedule.h"
#include "megalith/optim/rules/update_rule.h"
#include "megalith/train/evaluation.h"
#include "megalith/train/report/callback.h"
#include "megalith/train/run_checkpoint.h"
#include "megalith/train/run_length.h"
#include "megalith/train/run_saver.h"
#include "megalith/train/settings/trainer_settings.h"
#include "megalith/train/step/optimized_model.h"
#include "megalith/train/stop_flag.h"
#include "megalith/train/train_step.h"
#include "megalith/train/training_data.h"
#include "megalith/train/training_log.h"

namespace megalith::train {

// Hugging Face's name.
struct TrainOutput {
  int64_t global_step = 0;
  // Where this call of train() began: 0, or what the save point says that the run resumed.
  int64_t start_step = 0;
  int64_t start_input_tokens = 0;  // num_input_tokens_seen there
  double training_loss = 0;        // mean of the steps' losses
  MetricList metrics;        // train_runtime, train_samples_per_second, train_steps_per_second, total_flos, train_loss
  bool interrupted = false;  // the StopFlag ended it
};

// What a trainer works with. Callbacks come after the trainer's own (FlowCallback; EarlyStoppingCallback with
// early_stopping_steps).
struct TrainerSetup {
  std::optional<TrainingData> train_data{};
  std::vector<EvalData> eval_data{};
  std::unique_ptr<Objective> objective{};  // empty: language modelling
  // In place of the rule that the option `optimizer` names. Save points keep its name and states; a run that resumes
  // one gives the same rule.
  std::shared_ptr<const optim::UpdateRule> update_rule{};
  // In place of the curves that options describe, in optimizer steps (or samples: see optim::ScheduleUnit) that were
  // not skipped. A resumed run continues at the step of the save point.
  optim::RateFunctions rates{};
  std::vector<std::unique_ptr<TrainerCallback>> callbacks{};
  const StopFlag* stop = nullptr;             // once it is up: the step is finished, saved, and train() returns
  comm::Heartbeat heartbeat{};                // gets the section in which the run is, for whoever looks after it
  std::filesystem::path assets{};             // folder whose tokenizer files go into exports
  std::filesystem::path rejection_tracker{};  // file that remembers rejected results over restarts; empty: none
  std::optional<ResumePoint> resume{};
  TraceRecorder* trace = nullptr;  // gets spans of the phases of each step; outlives the trainer
};

// One thread a rank; all ranks call the same functions in the same order. `models` outlives it. Of several trainers of
// the same models one at a time may have trained: its buffers are the model's.
class Trainer {
 public:
  // Throws ConfigError for batch sizes that do not multiply out.
  Trainer(model::VirtualModels& models, TrainerSettings settings, TrainerSetup setup);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains to max_steps or the end of the epochs. Ends earlier when a callback says so, the StopFlag is up on any rank,
  // or the data ends. With load_best_model_at_end the model is then the best save point's. Throws ConfigError without
  // train_data or for a length that is not known, before memory for gradients is taken; RerunExit when a result is
  // rejected (rerun_guard.h), after the save point that it asks for.
  TrainOutput train();

  // Evaluates on all of eval_data, reports it (on_log, on_evaluate) and returns all metrics together; the names start
  // with `prefix`, and with several sets of data with prefix_name. Throws ConfigError without eval_data.
  MetricList evaluate(const std::string& prefix = "eval");
  // The same for other data, with on_predict.
  EvalLoopOutput predict(const EvalData& data, const std::string& prefix = "test");

  // See save_model.h.
  void save_model(const std::filesystem::path& folder);

  const TrainerSettings& settings() const { return settings_; }
  const TrainerState& state() const { return state_; }
  model::VirtualModels& models() { return models_; }
  // Of the present or last train(); nullptr before.
  OptimizedModel* optimized_model() { return model_.get(); }
  // Behind the last step that was done.
  const data::LoaderStart& data_position() const { return position_; }

 private:
  // train_loop.cc, in the order in which they run.
  void begin_training();
  void check_before_work() const;
  void try_collators() const;
  void start_state();
  EpochReader open_data() const;
  void run_epoch(EpochReader& data);
  std::optional<data::StepBatch> next_step(EpochReader& data);
  void run_step(const data::StepBatch& batch, double waited_seconds);
  void learn_from(const data::StepBatch& batch, int64_t number, double waited_seconds);
  void before_update();
  void end_epoch();
  void save_for_rerun(const RerunExit& exit);
  void limit_collectives();
  void compare_replicas();
  void log_evaluate_save();
  MetricList training_line();
  TrainOutput end_training(double seconds);

  void emit(CallbackList::Handler event, MetricList metrics = {}, std::filesystem::path folder = {});
  void log(MetricList line);
  void save_point();
  RunProgress progress() const;
  void load_best_model();
  EvalLoopOutput evaluate_on(const EvalData& data, const std::string& prefix);

  model::VirtualModels& models_;
  parallel::ParallelContext& context_;
  const TrainerSettings settings_;
  TrainerSetup setup_;
  const layout::MicrobatchCalculator batches_;
  CallbackList callbacks_;
  TraceRecorder no_trace_;  // nobody looks
  TraceRecorder& trace_;
  MicrobatchRunner runner_;
  TrainerState state_;
  TrainerControl control_;
  // Of a call of train().
  RunLength length_;
  std::unique_ptr<RerunGuard> guard_;  // outlives model_
  std::vector<int64_t> skipped_steps_;
  std::unique_ptr<OptimizedModel> model_;
  std::unique_ptr<TrainingLog> log_;
  data::LoaderStart position_;
  double flops_per_token_ = 0;
  int64_t last_samples_ = 0;        // of the last step
  int64_t skipped_samples_ = 0;     // of iterations_to_skip
  bool epoch_end_pending_ = false;  // the epoch's last step is done, and its end not told
  bool interrupted_ = false;
  double clock_seconds_ = 0;  // see TrainerEvent
  bool limited_ = false;      // collective_limit holds
  RunSaver saver_;            // last: gives up what it is doing before the model goes
};

}  // namespace megalith::train
