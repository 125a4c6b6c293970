// manifest.json: what a checkpoint folder holds, so that it can be told whether all of it is there and unchanged.
//
//   {"format": "megalith-checkpoint", "version": 1, "step": 10,
//    "layout": {"world_size": 8, "tp": 2, "pp": 2, "vpp": null, "cp": 1, "ep": 1, "etp": 2, …},
//    "holds": ["model", "optimizer", "rng"], "chunk_bytes": 16777216,
//    "files": [{"name": "model.safetensors", "bytes": 123, "crc32c": ["8a9136aa", …]}, …],
//    "crc32c": "…"}                                             of the object without this key, as compact JSON
//
// The names above and the numbers below are on disks: they do not change within a version.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/layout/grid_shape.h"

namespace megalith::checkpoint {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr int64_t kFormatVersion = 2;      // the highest that is read
inline constexpr int64_t kVersionWithPieces = 2;  // of folders in which tensors lie in pieces (pieces.h); others have 1
inline constexpr uint64_t kChunkBytes = 16 << 20;  // a checksum each

struct FileRecord {
  std::string name;  // in the folder
  uint64_t bytes = 0;
  std::vector<uint32_t> crc32c;  // of each chunk; the last may be shorter
  bool operator==(const FileRecord&) const = default;
};

// The layout that wrote it. Only random states and the fastest way of reading depend on it.
struct SavedLayout {
  int64_t world_size = 1, tp = 1, pp = 1, vpp = 1, cp = 1, ep = 1, etp = 1;
  bool distributed_optimizer = false;
  bool operator==(const SavedLayout&) const = default;

  static SavedLayout of(const layout::GridShape& shape, bool distributed_optimizer);
  std::string in_words() const;  // "8 ranks, tp 2, pp 2"
};

struct Manifest {
  int64_t version = 1;
  int64_t step = 0;
  SavedLayout layout;
  std::vector<std::string> holds;  // "model", and, as far as they were saved, "optimizer" and "rng"
  std::vector<FileRecord> files;   // all but the manifest, by name
  bool operator==(const Manifest&) const = default;

  bool has(std::string_view part) const;
  uint64_t total_bytes() const;

  std::string to_json() const;
  // Throws DataError naming `file_name` and what is wrong: not JSON, no checkpoint of Megalith, changed after it was
  // written, of a newer version (with both numbers), a field that is missing or of another type.
  static Manifest from_json(std::string_view text, const std::string& file_name);
};

// Whether a file of that name holds tensors of a stem: model.safetensors, model-00001-of-00003.safetensors.
bool is_tensor_file(std::string_view name, std::string_view stem);

// Chunks of a file of that size.
inline uint64_t chunks_of(uint64_t bytes) { return (bytes + kChunkBytes - 1) / kChunkBytes; }

// The manifest in a folder. Throws DataError, also for a folder that is not there, a model folder without one (of
// another program, or not complete), and what from_json refuses.
Manifest read_manifest(const std::filesystem::path& folder);
// Whether there is one, readable or not.
bool has_manifest(const std::filesystem::path& folder);

}  // namespace megalith::checkpoint
