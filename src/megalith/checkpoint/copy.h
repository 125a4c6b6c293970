// Checkpoints by one process, file by file: other shard sizes, and manifests for folders that have none.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "megalith/checkpoint/manifest.h"

namespace megalith::checkpoint {

// A file with the checksums of what is on the disk.
FileRecord record_of(const std::filesystem::path& file);
// Every file of the folder but the manifest; folders in it are left out.
std::vector<FileRecord> file_records(const std::filesystem::path& folder);

// Makes a model folder a checkpoint that holds the model alone, of step 0.
void add_manifest(const std::filesystem::path& folder);

struct CopyOptions {
  uint64_t max_shard_bytes = 5'000'000'000;
  bool overwrite = false;  // replace a folder that is there
};
// All of a checkpoint, verified before, with its tensors in files of other sizes. Tensor by tensor: it is never in
// memory as a whole. The target appears complete or not at all. Throws DataError for a source that is broken.
Manifest copy_checkpoint(const std::filesystem::path& source, const std::filesystem::path& target,
                         const CopyOptions& options);

}  // namespace megalith::checkpoint
