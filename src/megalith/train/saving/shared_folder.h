// Checks that all machines see the same output_dir.
#pragma once

#include <filesystem>

#include "megalith/comm/world.h"

namespace megalith::train {

// Creates the folder. Rank 0 puts a file with a fresh name into it, and one rank of each other machine looks for that
// file for up to `patience` seconds (network file systems take their time). Throws ConfigError on all ranks, naming the
// machines that do not see it. Collective over the world; returns at once when all ranks are on one machine.
void check_shared_folder(const std::filesystem::path& folder, comm::World& world, double patience = 10);

// Does the same regardless of machines: every rank with `looks` searches its own `folder`.
void check_shared_folder_of_ranks(const std::filesystem::path& folder, const comm::Group& ranks, bool looks,
                                  double patience);

}  // namespace megalith::train
