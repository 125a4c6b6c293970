// When a run logs, evaluates, saves and stops: the rules of Hugging Face's DefaultFlowCallback and
// EarlyStoppingCallback.
#pragma once

#include "megalith/train/report/callback.h"
#include "megalith/train/settings/trainer_settings.h"

namespace megalith::train {

// Sets logging_steps, eval_steps and save_steps of the state: those of the settings, or, below 1, that part of
// max_steps (rounded up). Needs max_steps.
void resolve_intervals(const TrainerSettings& settings, TrainerState& state);

// After each evaluation and its on_evaluate: takes a better value over into the state (best_metric, best_global_step)
// and, with the save strategy `best`, asks for a checkpoint. Returns whether it was better. Compares nothing unless
// eval.tracks_best is set. Throws ConfigError, listing the metrics there are, when that metric is not among them.
bool note_evaluation(const TrainerSettings& settings, const MetricList& metrics, TrainerState& state,
                     TrainerControl& control);

// Sets the flags of TrainerControl after each step and each epoch. A run without output_dir never saves. The last step
// asks for a checkpoint when steps are what decides about saving; a multiple of exit_interval is the last step, too.
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
