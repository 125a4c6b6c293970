// Prints the progress of a run to stderr: on a terminal one live line, elsewhere one line per logged step; in
// Megatron's style Megatron's log line.
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/observe/progress_line.h"
#include "megalith/observe/report_settings.h"
#include "megalith/train/report/callback.h"

namespace megalith::observe {

// The numbers of Megatron's line. Counts and rates are those of the whole job; `milliseconds` is the mean since the
// previous line, with everything that happened in between.
struct MegatronNumbers {
  std::string time;  // "2026-01-31 12:00:00"
  int64_t iteration = 0, train_iters = 0;
  int64_t consumed_samples = 0, skipped_samples = 0;
  double milliseconds = 0;  // per iteration
  std::optional<double> tflops_per_device;
  std::optional<double> joules_per_device, watts_per_device;  // per iteration; both or none
  double learning_rate = 0;
  int64_t global_batch_size = 0;
  train::MetricList losses;  // "lm loss" and the like; zeros and negative values are left out, NaN is not
  double loss_scale = 1;
  std::optional<double> grad_norm, num_zeros, params_norm;
  int64_t skipped_iterations = 0, nan_iterations = 0;
};
// Returns the line, with the fields, widths and separators of Megatron's training_log. Scripts that parse Megatron's
// logs must read it, so its oddities stay: a leading blank, and a bar after the last field.
std::string megatron_line(const MegatronNumbers& numbers);
// Returns Megatron's three lines for a validation loss. A ruler, the loss with its perplexity, and a ruler again.
std::string megatron_validation(int64_t iteration, double loss);

// How progress is shown. Megatron's style ignores `terminal`: its lines are meant for log files, and every one stays.
struct ProgressSettings {
  ReportStyle style = ReportStyle::kHuggingFace;
  bool throughput = false;                      // add TFLOP/s to Megatron's line
  bool num_zeros = false;                       // add the zeros of the gradients to Megatron's line
  std::function<void(std::string_view)> write;  // writes to stderr and flushes
  bool quiet = false;                           // no progress: make_observers leaves the callback out
  bool terminal = false;                        // the output is a terminal, where a line can be overwritten
  std::function<int()> columns;                 // width of the terminal now, 0 if unknown; may be empty
  bool unicode = false;                         // the terminal shows blocks and curves
  std::optional<double> peak_flops;             // peak of one device, FLOP/s
  std::function<double()> now;                  // seconds; empty for a steady clock
};

// Prints on world process zero; silent on other ranks. In Megatron's style no line is live. Expects in the trainer's
// log lines loss, learning_rate, grad_norm, tokens_per_second and the numbers of DeviceCostCallback; for Megatron's
// line also consumed_samples, skipped_samples, global_batch_size, loss_scale and params_norm, if they apply. The ETA
// leaves out the first step, which allocates, connects and plans.
class ProgressCallback : public train::TrainerCallback {
 public:
  // Fills in a steady clock where `settings.now` is empty. `settings.write` is called on the trainer's thread.
  explicit ProgressCallback(ProgressSettings settings);

  void on_train_begin(train::TrainerEvent& event) override;
  void on_step_end(train::TrainerEvent& event) override;
  void on_log(train::TrainerEvent& event) override;
  void on_train_end(train::TrainerEvent& event) override;

 private:
  // Whether a live line is drawn at all.
  bool is_live() const { return settings_.terminal && settings_.style != ReportStyle::kMegatron; }
  // Brings step, epoch and remaining time up to date; the other numbers stay as last logged.
  void update_numbers(const train::TrainerState& state);
  // Overwrites the live line; it stays open (without a line break) until say() or the end of training.
  void draw_live(const train::TrainerEvent& event);
  // Prints a line of its own; a live line is erased first, and reappears below at the next step.
  void say(std::string_view line);
  // One line for an evaluation, in the style of the run; and Megatron's line for a logged step.
  void say_evaluation(const train::TrainerEvent& event);
  void say_megatron(const train::TrainerEvent& event);
  // Returns the ETA in seconds; std::nullopt before a step has been timed.
  std::optional<double> remaining_seconds(const train::TrainerState& state) const;

  // State of the display; the trainer's thread only.
  ProgressSettings settings_;
  ProgressNumbers numbers_;     // as last logged
  std::deque<double> losses_;   // the last ones that were logged, for the live line
  int64_t start_step_ = 0;      // at which the run started or resumed
  double begin_ = 0;            // time from which the ETA is extrapolated,
  int64_t begin_step_ = 0;      // and the step completed then
  double last_draw_ = 0;        // time of the last live line
  double last_line_ = 0;        // Megatron: time of the last log line,
  int64_t last_line_step_ = 0;  // and its step
  bool line_is_open_ = false;   // the cursor is at the end of a live line
};

}  // namespace megalith::observe
