// Finds the checkpoint that a run continues: looked up before ranks exist, verified by all of them together.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "megalith/config/parser.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/run/resolve/run_settings.h"

namespace megalith::run {

// Checks that resume_from_checkpoint (`wanted`) names a complete checkpoint, and returns it; std::nullopt if the run
// starts from scratch. With `auto` it may turn out to be damaged. Throws ConfigError or DataError.
std::optional<std::filesystem::path> check_resume(const std::optional<std::string>& wanted,
                                                  const std::filesystem::path& run_folder);
// Returns the checkpoint to resume, complete and with intact checksums, or std::nullopt to start from scratch. Logs
// which checkpoints it skips. Collective over all ranks.
std::optional<std::filesystem::path> find_resume(const std::optional<std::string>& wanted,
                                                 const std::filesystem::path& run_folder,
                                                 const parallel::ParallelContext& context);

// The checkpoint that `load` (at ckpt_step, if given) names, or pretrained_checkpoint if `load` holds none.
struct LoadRequest {
  std::optional<std::filesystem::path> folder;
  bool weights_only = false;  // finetune, or pretrained_checkpoint: the run begins at iteration 0
  // The newest checkpoint of `load`, to use if `folder`, a non-persistent one, turns out to be damaged.
  std::optional<std::filesystem::path> fallback{};
};
// Finds it without reading its content. A folder without checkpoints means a fresh start, or ConfigError with
// exit_on_missing_checkpoint. A non-persistent checkpoint is taken if it is complete and not older than the newest one
// of `load`; one that is not taken is named in a warning on the rank with `logs`. Throws ConfigError or DataError for a
// checkpoint that is missing or incomplete.
LoadRequest find_load(const LoadSettings& settings, bool logs = false);

// With use_checkpoint_args: takes the options that describe the model and its tokenizer from the checkpoint (load or
// pretrained_checkpoint), except those that were given, and adds a note that lists them. Does nothing if neither folder
// is given, which validate() reports. Throws ConfigError if there is no checkpoint or its run took the model from a
// folder, and DataError if it has no args.yaml.
void take_checkpoint_arguments(config::ParseResult& parsed);

}  // namespace megalith::run
