// The progress of a run in one line, plain for files, with a bar and a curve for a terminal.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace megalith::observe {

// The numbers of a line; unknown ones are left out. Rates and times are those of the last log line, except the step,
// the epoch and the remaining time, which are current.
struct ProgressNumbers {
  int64_t step = 0, max_steps = 0;
  std::optional<double> epoch, loss, learning_rate, grad_norm;
  int64_t loss_step = 0;  // at which the loss was logged
  std::optional<double> tokens_per_second, tflops_per_device;
  std::optional<double> peak_tflops;  // peak of one device; gives the MFU
  std::optional<double> watts;        // drawn by one device
  std::optional<double> memory;       // bytes
  std::optional<double> remaining_seconds;
  int64_t skipped_steps = 0, nan_steps = 0;  // since the last line; shown if there are any
};
// Returns one line of ASCII: "step 120/1000 | epoch 0.12 | loss 2.3456 | lr 1.00e-04 | grad 1.234 | 12.3k tok/s | 45.1
// TFLOP/s (MFU 38.0 %) | 12.3 GB | ETA 1:23:45".
std::string progress_line(const ProgressNumbers& numbers);

// The terminal that a live line is drawn on.
struct LiveView {
  int columns = 0;       // 0: unknown, nothing is left out
  bool unicode = false;  // it shows ━ and ▃
};
// Returns the line with a bar after the step and a curve of `losses`, oldest first, after the loss. On a narrow
// terminal parts are left out as a whole, the least important first: power, TFLOP/s, memory, epoch, curve, learning
// rate, gradient norm, bar, rate, ETA. One column stays free, since some terminals wrap when the last is written.
//   step 120/1000 ━━────────────── 12 % | loss 2.3456 ▇▆▅▃▃▂▂▁ | grad 1.234 | 12.3k tok/s | ETA 1:23:45
std::string live_line(const ProgressNumbers& numbers, std::span<const double> losses, const LiveView& view);

}  // namespace megalith::observe
