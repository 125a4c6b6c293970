// Is a checkpoint complete and unchanged? And: which one does a run continue?
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megalith/checkpoint/manifest.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::checkpoint {

// A sentence for each file that is missing or has another size. Nothing is read.
std::vector<std::string> problems_of_sizes(const std::filesystem::path& folder, const Manifest& manifest);
// Also for each chunk that does not fit its checksum, of which this is one of `shares` equal parts of all; a file with
// another size is not read.
std::vector<std::string> problems_of_content(const std::filesystem::path& folder, const Manifest& manifest,
                                             uint64_t share = 0, uint64_t shares = 1);

// The same by all ranks together, each byte read by one of them: all problems on every rank. What makes the manifest
// unreadable is one of them.
std::vector<std::string> verify(const std::filesystem::path& folder, const parallel::ParallelContext& context);

// From resume_from_checkpoint to a folder, without a look at its content. "false": nothing. "true" and "latest": the
// newest of `run` (run_folder.h); ConfigError when there is none. "auto": likewise, or nothing. Otherwise a checkpoint
// folder, or the folder of a run, whose newest is taken. Throws ConfigError or DataError for what is no checkpoint.
std::optional<std::filesystem::path> find_checkpoint(const std::string& wanted, const std::filesystem::path& run);

// The same on all ranks together, with its content verified: DataError naming everything that is wrong. With "auto" a
// broken one is named in `skipped` and the next older one is tried.
struct ResumeChoice {
  std::optional<std::filesystem::path> folder;
  std::vector<std::string> skipped{};
};
ResumeChoice choose_checkpoint(const std::string& wanted, const std::filesystem::path& run,
                               const parallel::ParallelContext& context);

}  // namespace megalith::checkpoint
