// Converts checkpoints of other programs to Hugging Face folders: torch.distributed.checkpoint, Megatron-LM in both of
// its formats, mcore_adapter. Nothing in such a checkpoint is executed (hf/foreign/pickle_reader.h).
#pragma once

#include <filesystem>
#include <optional>

#include "megalith/model/convert/convert.h"

namespace megalith::model {

// Returns the folder that holds the files of another program's checkpoint: `path` itself, or the iteration in it that
// latest_checkpointed_iteration.txt names. std::nullopt when there is none.
std::optional<std::filesystem::path> find_foreign_checkpoint(const std::filesystem::path& path);

struct ForeignOptions {
  // Folder with the config.json of the model in the form of Hugging Face, and its tokenizer; empty to look for
  // config.json in the checkpoint.
  std::filesystem::path config;
  std::optional<at::ScalarType> dtype;  // nullopt = every tensor keeps its own
  uint64_t max_shard_bytes = 5'000'000'000;
  bool overwrite = false;
};

// The result of convert_foreign_checkpoint.
struct ForeignReport : ConvertReport {
  std::optional<int64_t> step;  // set if the state of the optimizer was written, too: the updates it has made
};

// Writes the weights of the checkpoint that `path` leads to into `target`, as a model of the family and the sizes that
// config.json says, and the state of the optimizer in the form of docs/checkpoint-format.md where it can be read
// (foreign_optimizer.h). Where it cannot, it is left out, and the log says why. Needs memory for one tensor at a time.
// Throws ConfigError when config.json is nowhere or describes a model that cannot be read from such a checkpoint,
// DataError listing every tensor that is missing, unexpected or of another shape. Checks all of this before it writes;
// the target appears complete or not at all.
ForeignReport convert_foreign_checkpoint(const std::filesystem::path& path, const std::filesystem::path& target,
                                         const ForeignOptions& options);

}  // namespace megalith::model
