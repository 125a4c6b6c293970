// The texts before the first step and after the last one: pure functions from numbers to text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "megalith/observe/report_settings.h"
#include "megalith/train/report/trainer_state.h"

namespace megalith::observe {

// Facts about a run before its first step; parts that are empty or 0 are left out. Every number is known before the
// first step; memory is planned, not measured.
struct StartSummary {
  std::string model;       // "llama, 4 layers of width 256, vocabulary 4096"
  int64_t parameters = 0;  // in the whole model, over all ranks
  int64_t fewest_on_rank = 0, most_on_rank = 0;
  int world_size = 1;
  std::vector<std::pair<std::string, int>> axes;             // "tp" 2, "pp" 2, …; axes of size 1 are not shown
  std::vector<std::pair<std::string, int>> expert_axes;      // "ep" 2, "etp" 1, "edp" 2; empty without experts
  std::string machinery;                                     // "gloo on CPU, fp32"
  std::string fp8;                                           // "71.2 % of the FLOPs"; empty without fp8
  std::vector<std::string> bf16;                             // with fp8: the other products and why
  std::vector<std::pair<std::string, double>> memory_bytes;  // by part, on the fullest rank: "parameters", …
  std::vector<std::pair<std::string, std::string>> data;     // "train" "1,024 sequences", "evaluation" …
  int64_t micro_batch_size = 0, microbatches = 0, dp = 1;    // their product is the global batch
  int64_t sequence_length = 0;                               // longest sequence, to compute the tokens per step
  int64_t max_steps = 0;
  std::optional<double> epochs;
  int64_t resumed_step = 0;  // > 0: the run continues from there
  std::string output_dir;
};
// Returns some lines, each with a name and its facts, ending with a line break:
//   model       llama, 4 layers of width 256: 5,242,880 parameters, 1,310,720 to 1,572,864 per rank
//   layout      4 ranks = tp 2 x pp 2; gloo on CPU, fp32       (with experts: 2 ranks = dp 2, for experts ep 2; …)
//   fp8         71.2 % of the FLOPs
//   bf16        28.8 % head: its rounding errors would go straight into the loss
//   memory      20.0 MB per rank: parameters 5.0 MB, gradients 5.0 MB, optimizer 10.0 MB
//   data        train: 1,024 sequences; evaluation: 64 sequences
//   batch       2 sequences x 4 micro-batches x 1 replica = 8 sequences, at most 2,048 tokens per step
//   run         1,000 steps (7.81 epochs)
//   output      out
std::string text_of(const StartSummary& summary);

// Facts about a run after its last step. A resumed run reports only its own part: steps, time and tokens since the
// resume.
struct EndSummary {
  int64_t steps = 0;      // done since the start or the resume
  int64_t last_step = 0;  // at which the run stopped
  int64_t max_steps = 0;  // at which it was to end
  double seconds = 0;
  int64_t tokens = 0;   // seen in that time by all ranks, without padding
  int64_t padding = 0;  // tokens that only filled rows
  std::optional<double> first_loss, last_loss, best_metric;
  std::string best_metric_name;
  std::optional<double> peak_bytes;                        // largest peak over the ranks
  std::vector<std::pair<std::string, std::string>> files;  // "model" "out", "plot" "out/loss.svg", …
  std::string wandb_folder;                                // with report_to wandb: the folder for its sync command
};
// Returns the lines
//   done        1,000 steps in 0:02:03 (8.13 steps/s, 16.6k tokens/s, 12 % padding)
//   loss        8.3176 -> 2.3456; best eval_loss 2.2500
//   …
// Lines without content are left out, as above.
std::string text_of(const EndSummary& summary);

// Collects what settings and state say about a run that started at `start_step` and took `seconds`: steps, first and
// last loss logged since then, best metric, and the files that the observers have written. The caller adds tokens and
// memory.
EndSummary end_summary(const ReportSettings& settings, const train::TrainerState& state, int64_t start_step,
                       double seconds);

}  // namespace megalith::observe
