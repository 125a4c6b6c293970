// TrainingLog: from the reports of steps to the numbers of a log line.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "megalith/train/report/metric_list.h"
#include "megalith/train/train_step.h"

namespace megalith::train {

// What the clock says of a step, on this rank.
struct StepTiming {
  double seconds = 0;
  int64_t row_lengths = 0;  // tokens of a row, padding too, of each micro-batch of this rank, summed up
};

// Steps since the last line, and since the beginning. One thread a rank.
class TrainingLog {
 public:
  struct Options {
    bool per_token = false;         // loss: all tokens since the last line count the same; otherwise all steps do
    bool nan_inf_filter = true;     // a loss that is no number counts as the mean of the others since the last line
    bool effective_tokens = false;  // tokens that are trained, per second, are shown
    bool loss_scale = false;        // is shown (fp16)
  };
  // What a line is made of, besides the last step: kept in checkpoints, so that a line over the end of a process is
  // the same.
  struct Totals {
    // Since the last line.
    int64_t steps = 0;
    MetricTotal loss{};
    std::vector<MetricTotal> metrics{};
    double seconds = 0;
    int64_t real_tokens = 0, trained_tokens = 0;
    // Since the beginning.
    MetricTotal all_steps{};
  };
  explicit TrainingLog(const Options& options) : options_(options) {}
  // Goes on.
  TrainingLog(const Options& options, Totals totals) : options_(options), totals_(std::move(totals)) {}

  void add(const StepReport& report, const StepTiming& timing);
  int64_t steps_since_line() const { return totals_.steps; }
  const Totals& totals() const { return totals_; }

  // The line, in this order; what comes after it belongs to the next:
  //   loss                    of the steps since the last line
  //   grad_norm               before clipping, of the last step; not there when it was skipped
  //   learning_rate           of the last step
  //   loss_scale              of the last step, when shown
  //   the objective's metrics since the last line
  //   skipped_iter            1 when the last step was skipped
  //   num_zeros_in_grad       of the last step; 0 unless counted (log_num_zeros_in_grad)
  //   token_per_sec_per_gpu   ROLL's number: lengths of the micro-batches' rows, batch size not multiplied in, of the
  //                           last step, by its seconds on this rank
  //   tokens_per_second       tokens of all ranks that are no padding, by the seconds of the steps since the last line
  //   effective_tokens_per_second   of these the tokens with a label, when shown
  // Requires a step by this object since the last line.
  MetricList line();

  // The mean of the steps' losses (Hugging Face's train_loss); 0 before the first.
  double mean_loss() const;

 private:
  void add_loss(const MetricTotal& loss);

  const Options options_;
  Totals totals_;
  std::optional<StepReport> last_;
  StepTiming last_timing_;
};

}  // namespace megalith::train
