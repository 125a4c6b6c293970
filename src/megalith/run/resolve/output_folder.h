// The folder that a run writes to (output_dir).
#pragma once

#include <filesystem>

#include "megalith/run/resolve/run_settings.h"

namespace megalith::run {

// Checks that the folder can be created and written and, if `begins_run`, that it holds no other run. Creates nothing.
// Throws ConfigError.
void check_output_folder(const OutputSettings& output, bool begins_run);
// Creates the folder, unless the run writes nothing. Throws ConfigError.
void make_output_folder(const OutputSettings& output);
// Returns whether the folder holds checkpoints that a restarted run could continue from.
bool holds_checkpoints(const std::filesystem::path& folder);

// The run that a folder holds, as far as its files tell.
enum class EarlierRun {
  kNone,     // no run: the folder does not exist, is empty, or holds something else
  kStarted,  // it ended before its first checkpoint and left no weights, so there is nothing to lose
  kSaved,    // it has checkpoints
  kEnded     // it left weights, but no checkpoint to continue from
};
EarlierRun earlier_run(const std::filesystem::path& folder);

}  // namespace megalith::run
