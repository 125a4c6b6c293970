// Prints the self-check of several ranks for `megalith doctor`; train/layout_check.h does the work.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "megalith/parallel/parallel_context.h"

namespace megalith::cli {

// Options of the self-check; std::nullopt means the default.
struct SelfCheckOptions {
  bool json = false;
  std::optional<int64_t> bytes;                 // size of large messages
  std::optional<std::filesystem::path> folder;  // place of the test checkpoint
};

// Checks the layout on all ranks. Rank 0 prints a table or one JSON object on stdout, and its progress on stderr.
// Returns whether all checks passed, the same on all ranks; rank 0 prints problems on stderr as well. Throws CommError
// when an operation fails, after printing the JSON object.
bool print_self_check(const parallel::ParallelContext& context, const SelfCheckOptions& options);

}  // namespace megalith::cli
