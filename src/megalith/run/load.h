// Which checkpoint a run continues: looked for before ranks exist, verified by all of them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "megalith/config/parser.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/run/run_settings.h"

namespace megalith::run {

// resume_from_checkpoint (`wanted`) can be what it asks for, in the folder of its run. Throws ConfigError or DataError.
void check_resume(const std::optional<std::string>& wanted, const std::filesystem::path& run_folder);
// The checkpoint that the run continues, complete and unchanged; nothing: it starts afresh. Says what it skips and
// takes. All ranks call it.
std::optional<std::filesystem::path> find_resume(const std::optional<std::string>& wanted,
                                                 const std::filesystem::path& run_folder,
                                                 const parallel::ParallelContext& context);

// The checkpoint that `load` (with ckpt_step: that one of it) or, where it holds none, pretrained_checkpoint names.
struct LoadRequest {
  std::optional<std::filesystem::path> folder;
  bool weights_only = false;  // finetune, or pretrained_checkpoint: the run begins at iteration 0
};
// Looks for it; its content is not read. A folder without any is a fresh start, or, with exit_on_missing_checkpoint, a
// ConfigError. Throws ConfigError or DataError for one that is not there or not complete.
LoadRequest find_load(const LoadSettings& settings);

// The options that describe the model and its tokenizer become those of the run that saved the checkpoint (load or
// pretrained_checkpoint), but for those that were given; a note says which. Nothing without use_checkpoint_args, or
// without either of the two, which validate() demands. Throws ConfigError where there is no checkpoint, or one of a run
// that took its model from a folder, and DataError for one without args.yaml.
void take_checkpoint_arguments(config::ParseResult& parsed);

}  // namespace megalith::run
