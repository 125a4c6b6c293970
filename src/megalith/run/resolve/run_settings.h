// Makes all settings of a run from its options.
#pragma once

#include "megalith/config/training_arguments.h"
#include "megalith/run/run_settings.h"

namespace megalith::run {

// `args` must be valid and derived. Throws ConfigError for what validate() cannot see, such as the name of a group of
// ranks that does not exist.
RunSettings run_settings(const config::TrainingArguments& args, const RunWorld& world);

// Parts of the above, for programs that need only these.
LoadSettings load_settings(const config::TrainingArguments& args);
PretrainSettings pretrain_settings(const config::TrainingArguments& args);
OutputSettings output_settings(const config::SaveConfig& save);
// Returns the tokens per sequence: seq_length, or cutoff_len without it. `args` need not be derived.
int64_t planned_length(const config::TrainingArguments& args);

}  // namespace megalith::run
