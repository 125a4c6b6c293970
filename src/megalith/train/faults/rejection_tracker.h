// RejectionTracker: the file that remembers rejected results over restarts (result_rejected_tracker_filename), and
// which steps it says to leave out.
//
//   ts=2026-11-15T14:03:22 node=gpu03 device=1 jobID=4711 rank=9 iteration=120 status=initial_run result=nan
//   message='…'
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace megalith::train {

// Where a result was computed.
struct ResultPlace {
  int rank = 0;
  std::string node = "localhost";
  std::string device = "0";  // index on its machine
};

// One a rank; all ranks append to one file, a line at a time.
class RejectionTracker {
 public:
  // Throws ConfigError when the file cannot be appended to. `job`: SLURM_JOBID, or any name of this start of the run.
  RejectionTracker(std::filesystem::path file, ResultPlace place, std::string job);

  // Statuses: rerun_disabled, initial_run, first_rerun_not_reproducible, first_rerun_reproducible,
  // second_rerun_not_reproducible, second_rerun_reproducible.
  void append(int64_t iteration, std::string_view status, double result, const std::string& message) const;

 private:
  const std::filesystem::path file_;
  const ResultPlace place_;
  const std::string job_;
};

// Steps to leave out, ascending: those with two events that say "reproducible" (rerun_disabled,
// first_rerun_reproducible, second_rerun_reproducible) on the same rank, except steps where several ranks of one job
// failed. Lines that are none of ours are ignored; no file: none.
std::vector<int64_t> iterations_to_skip(const std::filesystem::path& file);

}  // namespace megalith::train
