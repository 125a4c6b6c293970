// The folder that a run writes to.
#pragma once

#include <filesystem>

#include "megalith/run/run_settings.h"

namespace megalith::run {

// It can be made and written and, for whoever begins the run, holds nothing that a fresh run would mix with. Changes
// nothing. Throws ConfigError.
void check_output_folder(const OutputSettings& output, bool begins_run);
// Makes it, where a run writes at all. Throws ConfigError.
void make_output_folder(const OutputSettings& output);
// Whether the run has saved something there that it could continue.
bool holds_checkpoints(const std::filesystem::path& folder);

}  // namespace megalith::run
