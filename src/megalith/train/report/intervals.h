// Decides when a run logs, evaluates, saves and stops, by the rules of Hugging Face's DefaultFlowCallback and
// EarlyStoppingCallback.
#pragma once

#include "megalith/train/report/callback.h"
#include "megalith/train/settings/trainer_settings.h"

namespace megalith::train {

// Sets logging_steps, eval_steps and save_steps of the state to the values of the settings; values below 1 are
// fractions of max_steps (rounded up). Requires state.max_steps.
void resolve_intervals(const TrainerSettings& settings, TrainerState& state);

// Called after each evaluation and its on_evaluate. Records a better value in the state (best_metric, best_global_step)
// and, with the save strategy `best`, requests a checkpoint. Returns whether the value was better. Does nothing unless
// eval.tracks_best is set. Throws ConfigError, listing the available metrics, when the metric is not among them.
bool note_evaluation(const TrainerSettings& settings, const MetricList& metrics, TrainerState& state,
                     TrainerControl& control);

// Sets the flags of TrainerControl after each step and each epoch. A run without output_dir never saves. The last step
// requests a checkpoint if the save strategy is by steps. A multiple of exit_interval is a last step, too.
class FlowCallback : public TrainerCallback {
 public:
  void on_step_end(TrainerEvent& event) override;
  void on_epoch_end(TrainerEvent& event) override;
};

// Stops the run after `patience` evaluations in a row that did not improve state.best_metric by more than `threshold`
// (early_stopping_steps). Its counter survives a resume.
class EarlyStoppingCallback : public TrainerCallback {
 public:
  // `threshold` is an absolute difference of the metric.
  explicit EarlyStoppingCallback(int patience, double threshold = 0) : patience_(patience), threshold_(threshold) {}

  void on_evaluate(TrainerEvent& event) override;
  std::optional<CallbackRecord> record() const override;
  void restore(const CallbackRecord& saved) override;

 private:
  int patience_;
  double threshold_;
  int counter_ = 0;  // evaluations since the last improvement
};

}  // namespace megalith::train
