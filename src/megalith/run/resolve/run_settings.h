// From options to all settings of a run.
#pragma once

#include "megalith/config/training_arguments.h"
#include "megalith/run/run_settings.h"

namespace megalith::run {

// `args` after validate() and derive(). Throws ConfigError where validate() cannot tell: a schedule that does not
// exist, a group of ranks that does not.
RunSettings run_settings(const config::TrainingArguments& args, const RunWorld& world);

// Parts of it, for programs that need no more.
LoadSettings load_settings(const config::TrainingArguments& args);
PretrainSettings pretrain_settings(const config::TrainingArguments& args);
OutputSettings output_settings(const config::SaveConfig& save);
// Tokens of a sequence: seq_length, or else cutoff_len. Also before derive().
int64_t planned_length(const config::TrainingArguments& args);

}  // namespace megalith::run
