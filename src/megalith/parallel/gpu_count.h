// How many GPUs ranks will find, asked by the process that starts them. The CUDA driver does not survive a fork: that
// process must not touch it itself.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "megalith/config/training_arguments.h"

namespace megalith::parallel {

// What costs nothing to know: no more GPUs than device files (nvidia0, nvidia1, …) in `devices`, nor than
// CUDA_VISIBLE_DEVICES names. Nothing: there is no such file.
std::optional<int> most_gpus(const std::filesystem::path& devices, const std::optional<std::string>& visible);

// Throws ConfigError when so many ranks of this machine would be more than its GPUs, and each wants one. Where that may
// be so, a child process asks the driver.
void check_gpus_for(int ranks, const config::TrainingArguments& args);

}  // namespace megalith::parallel
