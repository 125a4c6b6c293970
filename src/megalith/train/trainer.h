// Trainer: the training loop (the reference's McaTrainer).
//
//   Trainer trainer(models, settings, {.train_data = numbered_data(dataset, order, collator), .eval_data = {{…}}});
//   trainer.train();                        // epochs of steps, with log lines, evaluations and save points
//   trainer.save_model("my-model");
//
// A step is in train_step.h. To change something: how samples become micro-batches is in data/collator.h, what is
// optimized (inputs, loss, metrics) in objective.h, when something happens in callback.h and intervals.h, what a
// log line says in training_log.h.
//
// Save points. output_dir/checkpoint-S holds the model as a Hugging Face folder plus everything that a run needs to
// continue (docs/checkpoint-format.md). read_resume_point (run_checkpoint.h) reads it, and TrainerSetup::resume
// restores it before the first step. With SaveSettings::in_background a save point is written while training continues:
// on_save is then called at the end of a later step, once the folder is complete.
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
#include "megalith/model/pretrained.h"
#include "megalith/model/virtual_models.h"
#include "megalith/optim/rules/update_rule.h"
#include "megalith/optim/schedule/lr_schedule.h"
#include "megalith/train/evaluation.h"
#include "megalith/train/faults/divergence.h"
#include "megalith/train/report/callback.h"
#include "megalith/train/run_checkpoint.h"
#include "megalith/train/run_length.h"
#include "megalith/train/run_saver.h"
#include "megalith/train/samples/text_sampler.h"
#include "megalith/train/settings/trainer_settings.h"
#include "megalith/train/step/optimized_model.h"
#include "megalith/train/stop_flag.h"
#include "megalith/train/train_step.h"
#include "megalith/train/training_data.h"
#include "megalith/train/training_log.h"

namespace megalith::train {

class KeptState;

// The work of one call of train(). A run that resumes counts what it did itself, not what earlier runs did.
struct WorkDone {
  int64_t steps = 0, samples = 0;
  int64_t tokens = 0;   // without padding; all ranks together
  int64_t padding = 0;  // tokens that only fill rows
};

// The result of Trainer::train(), under Hugging Face's name. The same on all ranks, except for the time in `metrics`.
struct TrainOutput {
  int64_t global_step = 0;
  // The step at which this call of train() began: 0, or the step of the save point that it resumed.
  int64_t start_step = 0;
  WorkDone work;
  double training_loss = 0;  // mean of the steps' losses
  // train_runtime, train_samples_per_second, train_steps_per_second, train_tokens_per_second (the rates of `work`),
  // total_flos, train_loss.
  MetricList metrics;
  bool interrupted = false;     // a StopFlag ended it
  std::string last_save_error;  // why the last save point is missing; empty if it was written or none was due
};

// Everything that a trainer works with besides its settings. The callbacks run after the trainer's own (FlowCallback,
// and EarlyStoppingCallback with early_stopping_steps). Moved into the trainer; pointers must outlive it.
struct TrainerSetup {
  std::optional<TrainingData> train_data{};
  std::vector<EvalData> eval_data{};
  std::unique_ptr<Objective> objective{};  // nullptr means language modeling
  // Replaces the update rule that the option `optimizer` names. Save points keep its name and its state; a run that
  // resumes from one must pass the same rule.
  std::shared_ptr<const optim::UpdateRule> update_rule{};
  // Replace the curves that the options describe. Their argument counts the optimizer steps (or samples: see
  // optim::ScheduleUnit) that were not skipped. A resumed run continues at the step of the save point.
  optim::RateFunctions rates{};
  std::vector<std::unique_ptr<TrainerCallback>> callbacks{};
  // Whether callbacks and objective read parameters only by running the model, and through functions of the trainer: an
  // update may then be in flight when they are called (overlap_optimizer_with_forward).
  bool updates_may_overlap = false;
  std::shared_ptr<const TextSampler> text_sampler{};  // lets the model write texts on its way; nullptr for none
  const StopFlag* stop = nullptr;             // once requested, the step is finished and saved, and train() returns
  comm::Heartbeat heartbeat{};                // receives the current phase of the run, for the watchdog
  model::Assets assets{};                     // tokenizer files of save points and exports
  std::filesystem::path rejection_tracker{};  // file that remembers rejected results across restarts; empty for none
  std::optional<ResumePoint> resume{};
  // Receives the state when the failure of another rank ends train(); the next trainer takes it from here in place of
  // `resume`. nullptr if nothing is kept. Given on all ranks or on none.
  KeptState* kept = nullptr;
  TraceRecorder* trace = nullptr;  // records spans of the phases of each step; outlives the trainer
};

// One thread per rank; all ranks call the same functions in the same order. `models` outlives the trainer. Several
// trainers may share models, but only one of them may have trained at a time: its buffers hold the model's parameters.
class Trainer {
 public:
  // Throws ConfigError when the batch sizes do not multiply out.
  Trainer(model::VirtualModels& models, TrainerSettings settings, TrainerSetup setup);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;

  // Trains to max_steps or to the end of the epochs. Ends earlier when a callback asks for it, when the StopFlag is set
  // on any rank, or when the data ends. With load_best_model_at_end the model then holds the best save point. Throws
  // ConfigError without train_data or when the length of the run is unknown, before any memory for gradients is taken;
  // throws RerunExit when a result is rejected (rerun_guard.h), after writing the save point that it asks for.
  TrainOutput train();

  // Evaluates on all of eval_data, reports the results (on_log, on_evaluate) and returns all metrics together. Their
  // names start with `prefix`, or with prefix_name when there are several data sets. Throws ConfigError without
  // eval_data.
  MetricList evaluate(const std::string& prefix = "eval");
  // Does the same for other data, and calls on_predict. The results are not logged as a line.
  EvalLoopOutput predict(const EvalData& data, const std::string& prefix = "test");

  // Exports the model or its adapter; see saving/save_model.h.
  void save_model(const std::filesystem::path& folder);

  const TrainerSettings& settings() const { return settings_; }
  const TrainerState& state() const { return state_; }  // as callbacks see it
  model::VirtualModels& models() { return models_; }
  // The model with the optimizer of the current or last train(); nullptr before the first.
  OptimizedModel* optimized_model() { return model_.get(); }
  // The position in the data after the last completed step.
  const data::LoaderStart& data_position() const { return position_; }

 private:
  // Defined in train_loop.cc, in the order in which they run.
  TrainOutput run_training();
  void keep_state();
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
  void limit_collectives();
  void compare_replicas();
  bool log_evaluate_save();  // returns whether it has saved
  void take_newer_state();
  void save_rolling();
  MetricList training_line();
  MetricList step_numbers() const;
  void set_sample_counts(MetricList& numbers) const;
  TrainOutput end_training(double seconds);

  TrainerEvent make_event();
  void emit(CallbackList::Handler event, MetricList metrics = {}, std::filesystem::path folder = {});
  void log(MetricList line);
  void save_point(bool rolling = false);
  RunProgress progress() const;
  void load_best_model();
  EvalLoopOutput evaluate_on(const EvalData& data, const std::string& prefix);

  // Defined in recorded_steps.cc.
  void record_samples(const data::StepBatch& batch);
  void count_values();
  void record_histograms();

  // Defined in rejected_steps.cc.
  RerunExit explained(const RerunExit& exit, const data::StepBatch& batch, int64_t number);
  void save_for_rerun(const RerunExit& exit);
  std::string flaw_of_state();  // why the state must not be saved; empty if it may

  model::VirtualModels& models_;
  parallel::ParallelContext& context_;
  const TrainerSettings settings_;
  TrainerSetup setup_;
  const layout::MicrobatchCalculator batches_;
  CallbackList callbacks_;
  TraceRecorder no_trace_;  // the target of trace_ when the setup has none; nobody reads it
  TraceRecorder& trace_;
  MicrobatchRunner runner_;
  TrainerState state_;
  TrainerControl control_;
  // State of one call of train().
  RunLength length_;
  WorkDone work_;
  std::unique_ptr<RerunGuard> guard_;  // outlives model_
  std::vector<int64_t> skipped_steps_;
  std::unique_ptr<OptimizedModel> model_;
  std::unique_ptr<TrainingLog> log_;
  std::optional<StepHistory> history_;  // set while training
  data::LoaderStart position_;
  double flops_per_token_ = 0;
  int64_t last_samples_ = 0;        // samples of the last step
  int64_t skipped_samples_ = 0;     // samples of iterations_to_skip
  bool epoch_end_pending_ = false;  // the last step of the epoch is done, but on_epoch_end has not been called yet
  bool interrupted_ = false;
  bool between_updates_ = false;                              // the state is whole: that after global_step
  double clock_seconds_ = 0;                                  // see TrainerEvent::clock_seconds
  StepOutcome outcome_ = StepOutcome::kUpdated;               // see TrainerEvent::outcome
  bool limited_ = false;                                      // collective_limit is in force
  std::optional<optim::HistogramCounter> histogram_counter_;  // with histogram_interval; model_ outlives it
  std::optional<optim::ValueCounts> counts_;                  // the current step's, if it has histograms
  RunSaver saver_;  // declared last: it abandons a running save before the model is destroyed
};

}  // namespace megalith::train
