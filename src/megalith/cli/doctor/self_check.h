// The self-check of several ranks as `megalith doctor` shows it; train/layout_check.h does the work.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "megalith/parallel/parallel_context.h"

namespace megalith::cli {

struct SelfCheckOptions {
  bool json = false;
  std::optional<int64_t> bytes;                 // of large messages
  std::optional<std::filesystem::path> folder;  // where the save is tried
};

// Checks the layout on all ranks. Rank 0 prints a table, or one JSON object, on stdout, and what it does on stderr.
// Returns whether all is well, the same on all ranks; problems are then on rank 0's stderr as well. An operation that
// fails throws CommError, after the JSON object has been printed.
bool print_self_check(const parallel::ParallelContext& context, const SelfCheckOptions& options);

}  // namespace megalith::cli
