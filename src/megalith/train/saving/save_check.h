// Checks that the ranks can save together, and can read what the others saved.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megalith/parallel/parallel_context.h"

namespace megalith::train {

// The outcome of the check.
struct SaveCheck {
  std::filesystem::path folder;  // folder of the trial
  uint64_t bytes = 0;            // size of the checkpoint; rank 0 only
  double save_seconds = 0, load_seconds = 0;
  std::vector<std::string> problems;  // found on this rank, one sentence each
};

// Saves a small sharded state (bf16, fp32, int64 and bytes; one part held by each rank alone, and one held by all) into
// a fresh folder below `folder`, has each rank read what the next rank wrote, compares bit for bit, and removes
// everything. Without `folder` it uses the machine's folder for temporary files or, when ranks are on several machines,
// the current folder. `hosts` has the machine of each rank.
//
// Collective over the world. Failures of files, such as ranks that do not see the same folder, are reported as problems
// and do not throw.
SaveCheck check_save_and_load(const parallel::ParallelContext& context,
                              const std::optional<std::filesystem::path>& folder,
                              const std::vector<std::string>& hosts);

}  // namespace megalith::train
