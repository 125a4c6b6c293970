// When a run logs, evaluates, saves and stops: the rules of Hugging Face's DefaultFlowCallback and
// EarlyStoppingCallback.
#pragma once

#include "megalith/train/report/callback.h"

namespace megalith::train {

// Sets logging_steps, eval_steps and save_steps of the state: the options, or, below 1, that part of max_steps (rounded
// up). Needs max_steps. An interval that was not given is 0: never.
void resolve_intervals(const config::TrainingArguments& args, TrainerState& state);

// The metric that decides which checkpoint is best, with HF's defaults where the options are silent.
struct BestMetric {
  std::string name;      // "eval_loss"
  bool greater = false;  // is better
  bool better(double value, double than) const { return greater ? value > than : value < than; }
};
BestMetric best_metric_of(const config::EvalConfig& eval);

// After each evaluation and its on_evaluate: takes a better value over into the state (best_metric, best_global_step)
// and, with save_strategy best, asks for a checkpoint. True when it was better. Without metric_for_best_model nothing
// is compared. Throws ConfigError, listing the metrics there are, when that metric is not among them.
bool note_evaluation(const config::TrainingArguments& args, const MetricList& metrics, TrainerState& state,
                     TrainerControl& control);

// Sets the flags of TrainerControl after each step and each epoch. With the pretrain dialect step 1 is always logged
// (spec/pretrain.md §8). A run that has no output_dir never saves. The last step asks for a checkpoint when steps are
// what decides about saving; a multiple of exit_interval is the last step, too.
class FlowCallback : public TrainerCallback {
 public:
  void on_step_end(TrainerEvent& event) override;
  void on_epoch_end(TrainerEvent& event) override;
};

// Stops the run after `patience` evaluations in a row that did not better state.best_metric by more than `threshold`
// (early_stopping_steps). Its counter survives a resume.
class EarlyStoppingCallback : public TrainerCallback {
 public:
  explicit EarlyStoppingCallback(int patience, double threshold = 0) : patience_(patience), threshold_(threshold) {}

  void on_evaluate(TrainerEvent& event) override;
  std::optional<CallbackRecord> record() const override;
  void restore(const CallbackRecord& saved) override;

 private:
  int patience_;
  double threshold_;
  int counter_ = 0;  // evaluations since the last gain
};

}  // namespace megalith::train
