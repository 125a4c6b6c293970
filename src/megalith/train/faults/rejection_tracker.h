// RejectionTracker: the file that remembers rejected results across restarts (result_rejected_tracker_filename), and
// the steps that it tells a run to skip. One event per line (wrapped here):
//
//   ts=2026-11-15T14:03:22 node=gpu03 device=1 jobID=4711 rank=9 iteration=120 status=initial_run
//   result=nan message='…'
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::train {

// The rank and device that computed a result.
struct ResultPlace {
  int rank = 0;
  std::string node = "localhost";
  std::string device = "0";  // index on its machine
};

// One per rank; all ranks append to one file, one line at a time.
class RejectionTracker {
 public:
  // Throws ConfigError when the file cannot be appended to. `job` is SLURM_JOBID, or any name of this start of the run.
  RejectionTracker(std::filesystem::path file, ResultPlace place, std::string job);

  // Appends one event. The statuses are rerun_disabled, initial_run, first_rerun_not_reproducible,
  // first_rerun_reproducible, second_rerun_not_reproducible and second_rerun_reproducible.
  void append(int64_t iteration, std::string_view status, double result, const std::string& message) const;

 private:
  const std::filesystem::path file_;
  const ResultPlace place_;
  const std::string job_;
};

// Returns the steps to skip, ascending: those with two "reproducible" events (rerun_disabled, first_rerun_reproducible,
// second_rerun_reproducible) on the same rank, except steps where several ranks of one job failed. Foreign lines are
// ignored; a missing file has no steps.
std::vector<int64_t> iterations_to_skip(const std::filesystem::path& file);

}  // namespace megalith::train
