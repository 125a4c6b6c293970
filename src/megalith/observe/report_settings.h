// ReportSettings: how a run is reported, with every default resolved. run::report_settings makes it from options.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/layout/grid_shape.h"

namespace megalith::observe {

// The vocabulary of a run's lines and curves. A run has one style for stderr and TensorBoard, so that its curves can be
// laid over those of the reference system.
enum class ReportStyle {
  kHuggingFace,  // "train/loss", "eval/loss"; one live line on a terminal
  kMegatron,     // "lm loss", "lm loss validation"; Megatron's log line
};

// A range of steps, counted from 1, both ends included. Comes from --trace, or from the options of the profiler.
struct TraceSteps {
  int64_t first = 1, last = 1;
  // Parses "10-12" or "10". Throws ConfigError.
  static TraceSteps parse(std::string_view text);
  bool operator==(const TraceSteps&) const = default;
};

// Settings of all reports: what is written, where, how often and in which vocabulary. It is plain data, equal on all
// ranks; callbacks and open files are made from it by make_observers.
struct ReportSettings {
  ReportStyle style = ReportStyle::kHuggingFace;
  std::filesystem::path output_dir;       // folder of the run's files; empty for none
  std::filesystem::path tensorboard_dir;  // folder of TensorBoard's files; empty for none
  bool wandb = false;                     // the end of the run shows the command that sends the files to W&B
  std::string run_name;                   // title of plots and events; empty if the run is unnamed
  std::string arguments;                  // every effective option as YAML: the text of args.yaml
  layout::GridShape grid;                 // places of the ranks, for events.jsonl
  std::string best_metric = "eval_loss";  // the metric by which evaluations are compared
  // How often curves get a point, and which phases are timed.
  int tensorboard_log_interval = 1;          // steps between points; evaluations are always written
  int timing_log_level = 0;                  // 0 to 2: higher levels have more timers
  std::string timing_log_option = "minmax";  // see timer_text
  bool log_throughput = false;               // TFLOP/s in Megatron's line
  bool log_num_zeros = false;                // zeros of the gradients in it
  bool log_progress = false;                 // Megatron's progress.txt in output_dir
  int64_t sequence_length = 0;               // tokens per sample, to count those of progress.txt; 0 if they differ
  bool text_samples = false;                 // the run writes texts on its way: samples.jsonl
  bool histograms = false;                   // it counts weights and gradients: histograms.jsonl
  // Slow ranks and the profile.
  bool log_energy = false;            // joules and watts of the GPUs
  bool log_straggler = false;         // name slow ranks
  int straggler_count = 1;            // how many
  std::optional<TraceSteps> profile;  // steps whose kernels are recorded; std::nullopt for none
  std::vector<int> profile_ranks{0};  // ranks that record them; the first one prints its tables
};

}  // namespace megalith::observe
