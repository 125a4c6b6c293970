// Do all machines see the same output_dir?
#pragma once

#include <filesystem>

#include "megalith/comm/world.h"

namespace megalith::train {

// Rank 0 puts a file with a fresh name into the folder; one rank of each other machine looks for it, up to `patience`
// seconds (network file systems take their time). Throws ConfigError on all ranks, naming the machines that do not see
// it. Collective over the world; nothing when all ranks are on one machine. Makes the folder.
void check_shared_folder(const std::filesystem::path& folder, comm::World& world, double patience = 10);

// The same whatever machines the ranks are on: every rank looks in its own `folder`.
void check_shared_folder_of_ranks(const std::filesystem::path& folder, const comm::Group& ranks, bool looks,
                                  double patience);

}  // namespace megalith::train
