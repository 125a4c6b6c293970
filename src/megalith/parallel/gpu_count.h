// How many GPUs ranks will find, asked without the CUDA driver: it does not survive the fork by which a process starts
// ranks, and a build for the CPU has none.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "megalith/parallel/rank_device.h"

namespace megalith::parallel {

// What costs nothing to know: no more GPUs than device files (nvidia0, nvidia1, …) in `devices`, nor than
// CUDA_VISIBLE_DEVICES names. Nothing: there is no such file.
std::optional<int> most_gpus(const std::filesystem::path& devices, const std::optional<std::string>& visible);

// Where the driver puts those files: /dev, or MEGALITH_DEVICE_DIR.
std::filesystem::path gpu_device_folder();

// "2 NVIDIA GPUs": those that a process on this machine could use, as most_gpus counts them; std::nullopt when there
// are none, or CUDA_VISIBLE_DEVICES (`visible`, as it is) hides them all.
std::optional<std::string> usable_gpus(const std::filesystem::path& devices, const std::optional<std::string>& visible);

// Warns, in a build for the CPU, that the GPUs of the machine stay unused. Silent with use_cpu, which says the same.
// For the first rank of a run.
void warn_of_unused_gpus(const DeviceSettings& settings);

// Throws ConfigError when so many ranks of this machine would be more than its GPUs, and each wants one. Where that may
// be so, a child process asks the driver.
void check_gpus_for(int ranks, const DeviceSettings& settings);

}  // namespace megalith::parallel
