// Verifies that a checkpoint is complete and unchanged, and chooses the one that a run continues from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "megalith/checkpoint/manifest.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::checkpoint {

// Returns a sentence for each file that is missing or has the wrong size. Does not read the files.
std::vector<std::string> problems_of_sizes(const std::filesystem::path& folder, const Manifest& manifest);
// Also returns a sentence for each chunk that does not match its checksum. Checks part number `share` of `shares` equal
// parts of all chunks. A file with the wrong size is not read.
std::vector<std::string> problems_of_content(const std::filesystem::path& folder, const Manifest& manifest,
                                             uint64_t share = 0, uint64_t shares = 1);

// Verifies the content with all ranks; each byte is read by one of them. Returns all problems on every rank, including
// a manifest that cannot be read. Collective.
std::vector<std::string> verify(const std::filesystem::path& folder, const parallel::ParallelContext& context);

// Returns the folder that resume_from_checkpoint = `wanted` selects, without checking its content:
//   "false"            std::nullopt
//   "true", "latest"   the newest checkpoint of `run` (run_folder.h); throws a ConfigError if there is none
//   "auto"             the newest checkpoint of `run`; std::nullopt if there is none
//   a path             that checkpoint, or the newest one if it is the folder of a run
// Throws a ConfigError or DataError if the path is not a checkpoint.
std::optional<std::filesystem::path> find_checkpoint(const std::string& wanted, const std::filesystem::path& run);

// The result of choose_checkpoint.
struct ResumeChoice {
  std::optional<std::filesystem::path> folder;  // std::nullopt: start from the beginning
  std::vector<std::string> skipped{};           // one sentence per broken checkpoint that "auto" passed over
};
// Selects like find_checkpoint and verifies the content, with all ranks; every rank gets the same result. Throws a
// DataError that names every problem of a broken checkpoint; with "auto" it tries the next older one instead.
// Collective.
ResumeChoice choose_checkpoint(const std::string& wanted, const std::filesystem::path& run,
                               const parallel::ParallelContext& context);

}  // namespace megalith::checkpoint
