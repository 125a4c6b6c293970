// Finds the rank that keeps the others waiting (log_straggler).
//
//   rank 0   compute 0.30 s  wait 0.22 s
//   rank 1   compute 0.50 s  wait 0.02 s                  the straggler: 0.50 > 1.5 times the median of the others
//   rank 2   compute 0.31 s  wait 0.21 s
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/observe/step_clock.h"
#include "megalith/train/report/callback.h"

namespace megalith::observe {

// Seconds per step on one rank, means since the last line: its own work, and waiting for others in operations. When a
// slow rank holds up the others, steps take equally long everywhere; the slow rank is the one that waits least. From
// StepClock, gathered over all ranks.
struct RankTime {
  int rank = 0;
  double compute = 0;
  double wait = 0;
};

// A rank is slow if it computes this many times as long as the median of the others. Shared by the warning here and the
// straggler event of events.jsonl.
inline constexpr double kSlow = 1.5;

// The verdict on one log interval. Times are seconds per step.
struct StragglerReport {
  RankTime slowest;
  double median_compute = 0;
  double longest_wait = 0;
  bool is_straggler = false;  // slowest.compute > kSlow · median of the others
  std::string text;           // "slowest: rank 3 (0.520 s compute, 0.010 s wait); fastest: …", `count` of each
};
// Compares the ranks; `count` is the number of slowest and fastest ranks to name. Pure; requires at least one rank.
// With a single rank there is nobody to be slower than, so it is never a straggler.
StragglerReport straggler_report(std::vector<RankTime> ranks, int count);

// Adds to the trainer's lines, for the callbacks after it: compute_seconds_max, compute_seconds_median,
// wait_seconds_max, slowest_rank. Prints the report on rank 0, as a warning if a rank is slow. Collective over `world`
// at each line.
class StragglerCallback : public train::TrainerCallback {
 public:
  // Sources of the times, and how many ranks the report names.
  struct Settings {
    std::function<double()> waited_seconds;  // seconds waited in operations so far, on this rank
    at::Device device = at::kCPU;            // device of the tensors that the group's collectives take
    int count = 1;                           // ranks to name (straggler_minmax_count)
  };
  // `world` is every rank of the run.
  StragglerCallback(comm::Group world, Settings settings)
      : world_(std::move(world)), settings_(std::move(settings)), clock_(settings_.waited_seconds) {}
  void on_step_begin(train::TrainerEvent&) override { clock_.begin(); }
  void on_step_end(train::TrainerEvent&) override { clock_.end(); }
  void on_log(train::TrainerEvent& event) override;

 private:
  comm::Group world_;
  Settings settings_;
  StepClock clock_;
};

}  // namespace megalith::observe
