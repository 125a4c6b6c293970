// Hugging Face to Hugging Face: another number format, other shard sizes, a larger vocabulary. Tensor by tensor; the
// model is never in memory as a whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include <c10/core/ScalarType.h>

namespace megalith::model {

struct ConvertOptions {
  std::optional<at::ScalarType> dtype;  // empty: every tensor keeps its own
  uint64_t max_shard_bytes = 5'000'000'000;
  std::optional<int64_t> vocab_size;  // grow to so many ids; the new rows are those that load_weights makes
  uint64_t seed = 42;                 // of the new rows
  std::filesystem::path adapter;      // merge it; empty: none
  bool overwrite = false;             // replace a folder that is there
};

struct ConvertReport {
  int64_t tensors = 0;
  uint64_t bytes = 0;
  int64_t files = 0;
};

// Checks everything (names, shapes, types, target) before the first byte is written; the target appears complete or not
// at all.
ConvertReport convert_checkpoint(const std::filesystem::path& source, const std::filesystem::path& target,
                                 const ConvertOptions& options);

}  // namespace megalith::model
