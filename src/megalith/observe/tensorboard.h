// Writes a run's numbers as TensorBoard files (report_to: tensorboard, or wandb, which reads the same files).
#pragma once

#include <optional>

#include "megalith/observe/event_file.h"
#include "megalith/observe/report_settings.h"
#include "megalith/train/report/callback.h"

namespace megalith::optim {
struct Histogram;
}

namespace megalith::observe {

// Returns a histogram in TensorBoard's form. Least, most and sums are those of values in the middle of their bins;
// values that are not finite are left out.
EventFile::Buckets buckets_of(const optim::Histogram& histogram);

// Returns the tag of a metric: Hugging Face's ("train/loss", "eval/loss") or Megatron's ("lm loss", "learning-rate",
// "lm loss validation"). A metric without a name of its own in the style keeps the one that it has.
std::string tensorboard_tag(ReportStyle style, std::string_view metric);

// Returns the command that sends these files to Weights & Biases; Megalith itself sends nothing.
std::string wandb_sync_command(const std::filesystem::path& folder);

// Writes, on world process zero, the arguments as text and then numbers. In Hugging Face's style these are all logged
// ones. In Megatron's style they are those of every log_interval-th step itself, whether or not a line is logged then;
// losses, rates and norms are also plotted over the consumed samples ("lm loss vs samples"), and lines add only what
// single steps do not have: evaluations, throughput, the norm of the parameters, counts since the last line. The files
// of a resumed run tell TensorBoard to forget the steps that are repeated.
class TensorboardCallback : public train::TrainerCallback {
 public:
  // How the numbers are named and how often they are written.
  struct Settings {
    ReportStyle style = ReportStyle::kHuggingFace;
    int log_interval = 1;   // steps between points in Megatron's style
    std::string arguments;  // the text that is written first
  };
  // Creates `folder` and a file in it when training begins; other processes may write their own files there.
  TensorboardCallback(std::filesystem::path folder, Settings settings)
      : folder_(std::move(folder)), settings_(std::move(settings)) {}
  void on_train_begin(train::TrainerEvent& event) override;
  void on_step_end(train::TrainerEvent& event) override;
  void on_log(train::TrainerEvent& event) override;
  void on_histograms(train::TrainerEvent& event) override;

 private:
  void add(std::string_view metric, double value, int64_t step, double wall_time);

  std::filesystem::path folder_;
  Settings settings_;
  std::optional<EventFile> file_;
  train::MetricList step_numbers_;  // received last by on_step_end, in Megatron's style
};

}  // namespace megalith::observe
