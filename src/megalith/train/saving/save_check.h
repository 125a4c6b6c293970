// Can the ranks save together, and read what the others saved?
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megalith/parallel/parallel_context.h"

namespace megalith::train {

struct SaveCheck {
  std::filesystem::path folder;  // where it was tried
  uint64_t bytes = 0;            // of the checkpoint; rank 0
  double save_seconds = 0, load_seconds = 0;
  std::vector<std::string> problems;  // of this rank, a sentence each
};

// Saves a small sharded state (bf16, fp32, int64 and bytes; a part that each rank has alone, and one that all have)
// into a fresh folder below `folder`, has each rank read what the next one wrote, compares bit for bit, and removes it
// all. Without `folder`: the machine's folder for temporary files or, with ranks on several machines, the current
// folder. `hosts` has the machine of each rank.
//
// Collective over the world. What goes wrong with files is a problem, not an exception: among others ranks that do not
// see the same folder.
SaveCheck check_save_and_load(const parallel::ParallelContext& context,
                              const std::optional<std::filesystem::path>& folder,
                              const std::vector<std::string>& hosts);

}  // namespace megalith::train
