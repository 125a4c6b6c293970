// Converts a Hugging Face checkpoint to another: other dtype, other shard sizes, a larger vocabulary, merged adapters,
// weights in fp8 with a scale per block or no longer so.
// Works tensor by tensor; the model is never in memory as a whole.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include <c10/core/ScalarType.h>

namespace megalith::model {

// The changes that convert_checkpoint makes; the defaults copy a checkpoint.
struct ConvertOptions {
  // Type of the tensors. nullopt = each keeps its own; one in fp8 with scales gets the type in config.json.
  std::optional<at::ScalarType> dtype;
  uint64_t max_shard_bytes = 5'000'000'000;  // largest size of one file
  std::optional<int64_t> vocab_size;         // grow to so many ids, with the new rows of load_weights
  uint64_t seed = 42;                        // seed of the noise in new rows
  std::vector<std::filesystem::path>
      adapters;             // folders of adapters to merge, in order; the vocabulary grows to theirs
  bool fp8_blocks = false;  // linear layers in fp8, as DeepSeek's files (fp8_blocks.h)
  bool overwrite = false;   // replace an existing folder
};

// The size of the new checkpoint.
struct ConvertReport {
  int64_t tensors = 0;
  uint64_t bytes = 0;
  int64_t files = 0;
};

// Converts `source` to `target` on this process alone; needs memory for one tensor at a time. Throws ConfigError for
// impossible requests and DataError for a checkpoint that does not fit its config.json.
// Checks everything (names, shapes, types, target) before it writes the first byte; the target appears complete or not
// at all.
ConvertReport convert_checkpoint(const std::filesystem::path& source, const std::filesystem::path& target,
                                 const ConvertOptions& options);

}  // namespace megalith::model
