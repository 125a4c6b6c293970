// The self-check of a layout on these machines: are its groups right, how fast are they, do a gradient norm, a save and
// a load work? What `megalith doctor --nproc N` prints.
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

struct LayoutCheckOptions {
  std::optional<int64_t> bytes;                 // of large messages; nullopt: 64 MiB on CUDA, 4 MiB on the CPU
  std::optional<std::filesystem::path> folder;  // see check_save_and_load
  // Hears what is about to be done; called on rank 0 alone.
  std::function<void(const std::string&)> progress = [](const std::string&) {};
};

// One kind of check, over all ranks.
struct CheckOutcome {
  std::string name;  // "group tp", "gradient norm", "save and load"
  int operations = 0;
  std::vector<std::string> problems;  // of all ranks, a sentence each; none when it passed
};

// One operation of one group.
struct LinkRow {
  std::string group;
  std::string purpose;
  std::vector<int> ranks;
  parallel::TimedOp operation = parallel::TimedOp::kAllReduce;
  parallel::LinkTime time;
};

struct LayoutReport {
  std::vector<std::string> hosts;      // by rank
  std::vector<CheckOutcome> outcomes;  // the same on all ranks
  std::vector<LinkRow> links;          // of every group; rank 0 only
  std::vector<parallel::PairSpeed> pairs;
  std::vector<parallel::PairSummary> pair_summaries;
  std::string saved_in;
  uint64_t saved_bytes = 0;
  double save_seconds = 0, load_seconds = 0;  // of rank 0
  double seconds = 0;                         // of everything

  bool ok() const;
  std::vector<std::string> problems() const;
};

// Collective over the world. When a group gives wrong answers the rest is left out: nothing could be trusted. An
// exception of an operation is thrown on as CommError with the name of the check in front; another rank's
// (PeerFailure) as it is.
LayoutReport check_layout(const parallel::ParallelContext& context, const LayoutCheckOptions& options = {});

}  // namespace megalith::train
