// manifest.json: lists the content of a checkpoint folder with checksums, to verify that it is complete and unchanged.
//
//   {"format": "megalith-checkpoint", "version": 1, "step": 10,
//    "layout": {"world_size": 8, "tp": 2, "pp": 2, "vpp": 1, "cp": 1, "ep": 1, "etp": 2, …},
//    "holds": ["model", "optimizer", "rng"], "chunk_bytes": 16777216,
//    "files": [{"name": "model.safetensors", "bytes": 123, "crc32c": ["8a9136aa", …]}, …],
//    "crc32c": "…"}                              checksum of the object without this key, as compact JSON
//
// The names above and the numbers below are stored on disks: they must not change within a version.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/layout/grid_shape.h"

namespace megalith::checkpoint {

inline constexpr const char* kManifestName = "manifest.json";
inline constexpr int64_t kFormatVersion = 2;       // the highest version that can be read
inline constexpr int64_t kVersionWithPieces = 2;   // folders that store tensors in pieces (pieces.h); all others have 1
inline constexpr uint64_t kChunkBytes = 16 << 20;  // one checksum per chunk of this size

// One file of a checkpoint.
struct FileRecord {
  std::string name;  // within the folder
  uint64_t bytes = 0;
  std::vector<uint32_t> crc32c;  // one per chunk; the last chunk may be shorter
  bool operator==(const FileRecord&) const = default;
};

// The layout of the run that wrote the checkpoint. Any layout can read it; only random states, and how fast it can be
// read, depend on this one.
struct SavedLayout {
  int64_t world_size = 1, tp = 1, pp = 1, vpp = 1, cp = 1, ep = 1, etp = 1;
  bool distributed_optimizer = false;
  bool operator==(const SavedLayout&) const = default;

  static SavedLayout of(const layout::GridShape& shape, bool distributed_optimizer);
  std::string in_words() const;  // "8 ranks, tp 2, pp 2"
};

// The content of manifest.json.
struct Manifest {
  int64_t version = 1;
  int64_t step = 0;
  SavedLayout layout;
  std::vector<std::string> holds;  // "model" and, if they were saved, "optimizer" and "rng"
  std::vector<FileRecord> files;   // all except the manifest, sorted by name
  bool operator==(const Manifest&) const = default;

  // Whether `part` is in `holds`.
  bool has(std::string_view part) const;
  uint64_t total_bytes() const;

  // Returns the text of the file, with its own checksum.
  std::string to_json() const;
  // Throws a DataError that names `file_name` and the problem: not JSON, not a Megalith checkpoint, changed after it
  // was written, a newer version (with both numbers), or a field that is missing or has the wrong type.
  static Manifest from_json(std::string_view text, const std::string& file_name);
};

// Whether the name belongs to a tensor file of a stem: model.safetensors, model-00001-of-00003.safetensors.
bool is_tensor_file(std::string_view name, std::string_view stem);

// Returns the number of chunks in a file of this size.
inline uint64_t chunks_of(uint64_t bytes) { return (bytes + kChunkBytes - 1) / kChunkBytes; }

// Reads the manifest of a folder. Throws a DataError if the folder does not exist, if it has no manifest (a model
// folder of another program, or an incomplete checkpoint), or if from_json refuses it.
Manifest read_manifest(const std::filesystem::path& folder);
// Whether the folder has a manifest, readable or not.
bool has_manifest(const std::filesystem::path& folder);

}  // namespace megalith::checkpoint
