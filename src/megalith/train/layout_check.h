// Self-check of a layout on the machines of a run, printed by `megalith doctor --nproc N`: are its groups right, how
// fast are they, do a gradient norm, a save and a load work?
//
//   const LayoutReport report = check_layout(context);    // all ranks
//   for (const std::string& problem : report.problems()) log_warning("{}", problem);
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/parallel/link_times.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::train {

// Parameters of the check.
struct LayoutCheckOptions {
  std::optional<int64_t> bytes;                 // size of large messages; std::nullopt: 64 MiB on CUDA, 4 on the CPU
  std::optional<std::filesystem::path> folder;  // see check_save_and_load
  // Called with a description of each check before it starts; on rank 0 only.
  std::function<void(const std::string&)> progress = [](const std::string&) {};
};

// The outcome of one kind of check, over all ranks.
struct CheckOutcome {
  std::string name;  // "group tp", "gradient norm", "save and load"
  int operations = 0;
  std::vector<std::string> problems;  // found on any rank, one sentence each; empty when the check passed
};

// The measured time of one operation of one group. `purpose` says what training uses the group for; `ranks` are world
// ranks.
struct LinkRow {
  std::string group;
  std::string purpose;
  std::vector<int> ranks;
  parallel::TimedOp operation = parallel::TimedOp::kAllReduce;
  parallel::LinkTime time;
};

// The outcome of all checks. Kept on every rank; rank 0 prints it.
struct LayoutReport {
  std::vector<std::string> hosts;      // by rank
  std::vector<CheckOutcome> outcomes;  // the same on all ranks
  std::vector<LinkRow> links;          // one per group and operation
  std::vector<parallel::PairSpeed> pairs;
  std::vector<parallel::PairSummary> pair_summaries;
  std::string saved_in;
  uint64_t saved_bytes = 0;
  double save_seconds = 0, load_seconds = 0;  // on rank 0
  double seconds = 0;                         // duration of the whole check

  // Whether no check found a problem, and the problems of all checks.
  bool ok() const;
  std::vector<std::string> problems() const;
};

// Runs all checks. Collective over the world. If a group gives wrong answers, the remaining checks are left out because
// their results could not be trusted. An exception of an operation is rethrown as CommError with the name of the check
// in front; PeerFailure, which reports another rank's exception, is rethrown unchanged. Takes seconds; files of the
// save check are removed again.
LayoutReport check_layout(const parallel::ParallelContext& context, const LayoutCheckOptions& options = {});

}  // namespace megalith::train
