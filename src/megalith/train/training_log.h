// TrainingLog: turns the reports of steps into the numbers of a log line.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "megalith/train/report/metric_list.h"
#include "megalith/train/train_step.h"

namespace megalith::train {

// How long a step took on this rank, and the length of its rows.
struct StepTiming {
  double seconds = 0;
  int64_t row_lengths = 0;  // tokens per row, with padding, summed over this rank's micro-batches
};

// Accumulates the steps since the last line, and since the start of the run. One thread per rank.
class TrainingLog {
 public:
  // Contents of the lines.
  struct Options {
    bool per_token = false;         // weigh the loss by token over all steps since the last line; otherwise by step
    bool nan_inf_filter = true;     // replace a loss that is not finite by the mean of the others since the last line
    bool effective_tokens = false;  // also report the labeled tokens per second
    bool loss_scale = false;        // also report the loss scale (fp16)
  };
  // The losses and metrics of some steps.
  struct StepSums {
    int64_t steps = 0;
    MetricTotal loss{};  // sums the steps whose loss counts; see line()
    std::vector<MetricTotal> metrics{};
  };
  // Everything that a line needs besides the last step. Checkpoints keep it, so that a line that spans a restart is the
  // same as without one.
  struct Totals {
    // Since the last line.
    StepSums updated{}, skipped{};
    int64_t nan_steps = 0;  // steps of both kinds whose loss is NaN or infinite
    double seconds = 0;
    int64_t real_tokens = 0, trained_tokens = 0;
    int64_t media = 0, sounds = 0, media_tokens = 0;
    double tower_flops = 0;
    // Since the beginning.
    MetricTotal all_steps{};
  };
  explicit TrainingLog(const Options& options) : options_(options) {}
  // Continues from the totals of a checkpoint.
  TrainingLog(const Options& options, Totals totals) : options_(options), totals_(std::move(totals)) {}

  // Adds a step to the line in progress and to the totals of the run.
  void add(const StepReport& report, const StepTiming& timing);
  int64_t steps_since_line() const { return totals_.updated.steps + totals_.skipped.steps; }
  const Totals& totals() const { return totals_; }

  // Returns the line, in this order, and starts the next one. Means leave out steps that were skipped, as Megatron's
  // do, unless all steps since the last line were.
  //   loss                          mean of the steps since the last line; NaN if none of them has a finite loss, or,
  //                                 without nan_inf_filter, if one of them has none
  //   grad_norm                     of the last step, before clipping; absent when that step was skipped
  //   learning_rate                 of the last step
  //   loss_scale                    of the last step; if enabled
  //   <the objective's metrics>     means since the last line
  //   skipped_iter                  steps since the last line whose update was skipped
  //   nan_iter                      steps since the last line whose loss is NaN or infinite
  //   num_zeros_in_grad             of the last step; 0 unless counted (log_num_zeros_in_grad)
  //   token_per_sec_per_gpu         ROLL's number: row lengths of the last step's micro-batches (not multiplied by the
  //                                 batch size) divided by its seconds on this rank
  //   tokens_per_second             tokens of all ranks without padding, divided by the seconds since the last line
  //   effective_tokens_per_second   the labeled ones among them; if enabled
  //   images_per_second             images and videos of all ranks, divided by the same seconds; absent without any
  //   sounds_per_second             likewise
  //   media_token_share             share of tokens_per_second that stands for them; likewise
  //   tower_flops_per_second        operations of the towers for images and sounds on all ranks, divided by the same
  //                                 seconds; absent without any
  // Requires at least one add() on this object since the last line.
  MetricList line();

  // Returns the numbers of the last step alone, under the names that they have in a line: loss, grad_norm,
  // learning_rate, loss_scale (if enabled), the objective's metrics and num_zeros_in_grad (if counted). Requires an
  // add() on this object.
  MetricList last_step() const;

  // Returns the mean loss of all steps that were not skipped (Hugging Face's train_loss); NaN if there is none.
  double mean_loss() const;

 private:
  void add_loss(const MetricTotal& loss, bool skipped);

  const Options options_;
  Totals totals_;
  std::optional<StepReport> last_;
  StepTiming last_timing_;
};

}  // namespace megalith::train
