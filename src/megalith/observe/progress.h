// What a run says while it goes on, on stderr: one live line on a terminal, one line per logged step elsewhere; in
// Megatron's style its log line.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/observe/report_settings.h"
#include "megalith/train/report/callback.h"

namespace megalith::observe {

// The numbers of a line; those that are not known are left out of it.
struct ProgressNumbers {
  int64_t step = 0, max_steps = 0;
  std::optional<double> epoch, loss, learning_rate, grad_norm;
  std::optional<double> tokens_per_second, tflops_per_device;
  std::optional<double> peak_tflops;  // of a device; gives the MFU
  std::optional<double> memory;       // bytes
  std::optional<double> remaining_seconds;
};
// "step 120/1000 | epoch 0.12 | loss 2.3456 | lr 1.00e-04 | grad 1.234 | 12.3k tok/s | 45.1 TFLOP/s (MFU 38.0 %) |
// 12.3 GB | ETA 1:23:45", in one line of ASCII.
std::string progress_line(const ProgressNumbers& numbers);

// Megatron's line (spec/pretrain.md §8).
struct MegatronNumbers {
  std::string time;  // "2026-01-31 12:00:00"
  int64_t iteration = 0, train_iters = 0;
  int64_t consumed_samples = 0, skipped_samples = 0;
  double milliseconds = 0;  // an iteration
  std::optional<double> tflops_per_device;
  double learning_rate = 0;
  int64_t global_batch_size = 0;
  train::MetricList losses;  // "lm loss" and the like; those not above 0 are left out
  double loss_scale = 1;
  std::optional<double> grad_norm, num_zeros, params_norm;
  int64_t skipped_iterations = 0, nan_iterations = 0;
};
std::string megatron_line(const MegatronNumbers& numbers);
// Megatron's three lines for a validation loss (spec/pretrain.md §7).
std::string megatron_validation(int64_t iteration, double loss);

struct ProgressSettings {
  ReportStyle style = ReportStyle::kHuggingFace;
  bool throughput = false;                      // Megatron's line has TFLOP/s
  bool num_zeros = false;                       // it has the zeros of the gradients
  std::function<void(std::string_view)> write;  // to stderr, flushed
  bool terminal = false;                        // what is written there can be overwritten
  int columns = 0;                              // of it; 0: unknown
  std::optional<double> peak_flops;             // of a device, FLOP/s
  std::function<double()> now;                  // seconds; empty: a steady clock
};

// On world process zero; silent on others. In Megatron's style no line is live. Needs of the
// trainer's log lines: loss, learning_rate, grad_norm, tokens_per_second, and what DeviceCostCallback adds; for
// Megatron's also consumed_samples, skipped_samples, global_batch_size, loss_scale, params_norm, where they apply.
class ProgressCallback : public train::TrainerCallback {
 public:
  explicit ProgressCallback(ProgressSettings settings);

  void on_train_begin(train::TrainerEvent& event) override;
  void on_step_end(train::TrainerEvent& event) override;
  void on_log(train::TrainerEvent& event) override;
  void on_train_end(train::TrainerEvent& event) override;

 private:
  bool is_live() const { return settings_.terminal && settings_.style != ReportStyle::kMegatron; }
  // As last logged, at the step and the time that it is now.
  std::string current_line(const train::TrainerState& state);
  void draw_live(const train::TrainerEvent& event);
  void say(std::string_view line);
  void say_evaluation(const train::TrainerEvent& event);
  void say_megatron(const train::TrainerEvent& event);
  std::optional<double> remaining_seconds(const train::TrainerState& state) const;

  ProgressSettings settings_;
  ProgressNumbers numbers_;     // as last logged
  int64_t start_step_ = 0;      // of the run, or of its resumption
  double begin_ = 0;            // since when,
  int64_t begin_step_ = 0;      // and after which step, the estimate's time is taken
  double last_draw_ = 0;        // of the live line
  double last_line_ = 0;        // Megatron: when the last log line was said,
  int64_t last_line_step_ = 0;  // and at which step
  bool line_is_open_ = false;   // a live line stands there
};

}  // namespace megalith::observe
