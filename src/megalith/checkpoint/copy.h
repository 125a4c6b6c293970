// Tools that handle a checkpoint in a single process: copying with other shard sizes, and adding a manifest to a folder
// that has none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "megalith/checkpoint/manifest.h"

namespace megalith::checkpoint {

// Reads a file and returns its record with the checksums of its content.
FileRecord record_of(const std::filesystem::path& file);
// Returns the records of every file in the folder except the manifest, sorted by name. Subfolders are left out.
std::vector<FileRecord> file_records(const std::filesystem::path& folder);

// Turns a folder into a checkpoint: a model folder into one of step 0 that holds only the model.
void add_manifest(const std::filesystem::path& folder, int64_t step = 0,
                  const std::vector<std::string>& holds = {"model"});

// Options of copy_checkpoint.
struct CopyOptions {
  uint64_t max_shard_bytes = 5'000'000'000;
  bool overwrite = false;  // replace an existing target folder
};
// Verifies a checkpoint and copies all of it, with its tensors in files of another size. Works tensor by tensor, so the
// checkpoint is never in memory as a whole. The target appears complete or not at all. Throws a DataError if the source
// is broken.
Manifest copy_checkpoint(const std::filesystem::path& source, const std::filesystem::path& target,
                         const CopyOptions& options);

}  // namespace megalith::checkpoint
