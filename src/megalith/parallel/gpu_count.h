// Counts the GPUs that ranks will find, without the CUDA driver: the driver does not survive the fork that starts
// ranks, and a CPU build has none.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "megalith/parallel/rank_device.h"

namespace megalith::parallel {

// Returns an upper bound that costs nothing: the number of device files (nvidia0, nvidia1, …) in `devices`, limited to
// the GPUs that CUDA_VISIBLE_DEVICES names. std::nullopt if there is no such file.
std::optional<int> most_gpus(const std::filesystem::path& devices, const std::optional<std::string>& visible);

// Returns the folder of those files: /dev, or MEGALITH_DEVICE_DIR.
std::filesystem::path gpu_device_folder();

// Returns "2 NVIDIA GPUs": those that a process on this machine could use, as most_gpus counts them; std::nullopt when
// there are none, or CUDA_VISIBLE_DEVICES (passed unchanged as `visible`) hides them all.
std::optional<std::string> usable_gpus(const std::filesystem::path& devices, const std::optional<std::string>& visible);

// Warns, in a CPU build, that the machine's GPUs stay unused. Silent with use_cpu, which asks for that. For the first
// rank of a run.
void warn_of_unused_gpus(const DeviceSettings& settings);

// Throws ConfigError when `ranks` ranks of this machine, each with its own GPU, would need more GPUs than it has. When
// the upper bound leaves doubt, a child process asks the driver.
void check_gpus_for(int ranks, const DeviceSettings& settings);

}  // namespace megalith::parallel
