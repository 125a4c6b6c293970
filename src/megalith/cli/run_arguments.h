// The words of `train` and `pretrain`.
#pragma once

#include <optional>

#include "megalith/cli/command.h"
#include "megalith/config/training_arguments.h"
#include "megalith/run/launch_flags.h"
#include "megalith/run/training_run.h"

namespace megalith::cli {

// Words to effective arguments. Nothing when the words asked for help or --dry_run, which has been answered. Throws
// ConfigError with every problem that settings alone can tell. `name`: of the command.
std::optional<config::TrainingArguments> read_run_arguments(config::Dialect dialect, const char* name, Words words,
                                                            run::LaunchFlags& launch, run::RunFlags& flags);

}  // namespace megalith::cli
