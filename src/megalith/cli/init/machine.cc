// The machine of the planner, as it is found here.
#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <thread>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/cli/init/init_internal.h"
#include "megalith/comm/world.h"
#include "megalith/layout/grid_shape.h"
#include "megalith/parallel/gpu_count.h"
#include "megalith/run/plan_inputs.h"

namespace megalith::cli {

namespace {

// Returns the preset with the nearest memory, with the memory that the GPU has: speeds only order the layouts.
plan::Cluster nearest_preset(double memory_bytes) {
  plan::Cluster best;
  for (const std::string& name : plan::cluster_presets()) {
    const plan::Cluster preset = plan::find_cluster(name);
    if (!preset.cuda) continue;
    const auto distance = [&](const plan::Cluster& c) { return std::abs(std::log(c.memory_bytes / memory_bytes)); };
    if (best.gpu.empty() || distance(preset) < distance(best)) best = preset;
  }
  best.reserved_bytes *= memory_bytes / best.memory_bytes;
  best.memory_bytes = memory_bytes;
  return best;
}

std::string gpus_in_words(int ranks, const plan::Cluster& cluster) {
  return fmt::format("{} GPU{} with {:.1f} GiB{}", ranks, ranks == 1 ? "" : "s", cluster.memory_bytes / plan::kGiB,
                     ranks == 1 ? "" : " each");
}

// A build without CUDA trains on the CPU whatever the machine has.
Machine look_at_cpu(int cores, int ranks) {
  Machine machine{.cluster = plan::find_cluster("cpu"), .ranks = ranks, .cores = cores};
  const double free_bytes = run::available_host_bytes();
  if (free_bytes > 0) machine.cluster.memory_bytes = free_bytes / ranks;
  machine.cluster.gpus_per_node = ranks;
  machine.in_words = fmt::format("the CPU: {} core{}, {:.1f} GiB of memory free", cores, cores == 1 ? "" : "s",
                                 free_bytes / plan::kGiB);
  return machine;
}

}  // namespace

Machine look_at_machine(const std::optional<int64_t>& gpus, const std::optional<std::string>& gpu) {
  check<ConfigError>(!gpus || (*gpus >= 1 && *gpus <= layout::kMaxGridSize),
                     "gpus is {}; it must be a whole number from 1 to {}", gpus.value_or(0), layout::kMaxGridSize);
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const auto asked_or = [&](int fallback) { return gpus ? static_cast<int>(*gpus) : fallback; };
  if (gpu) {
    Machine machine{.cluster = plan::find_cluster(*gpu), .ranks = asked_or(1), .cores = cores};
    machine.cluster.gpus_per_node = std::min(machine.ranks, machine.cluster.gpus_per_node);
    machine.in_words = fmt::format("{} of kind {}", gpus_in_words(machine.ranks, machine.cluster), *gpu);
    return machine;
  }
  const auto found = comm::nccl_available()
                         ? parallel::most_gpus(parallel::gpu_device_folder(), env_string("CUDA_VISIBLE_DEVICES"))
                         : std::nullopt;
  if (!found) return look_at_cpu(cores, asked_or(1));
  Machine machine{.ranks = asked_or(*found), .cores = cores};
  machine.cluster = nearest_preset(static_cast<double>(at::accelerator::getMemoryInfo(0).second));
  machine.cluster.gpus_per_node = std::min(machine.ranks, *found);
  machine.in_words = fmt::format("{}, {} cores", gpus_in_words(machine.ranks, machine.cluster), cores);
  return machine;
}

}  // namespace megalith::cli
