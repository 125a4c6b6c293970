// What a rank must know to join a run: the layout, its seeds, its device, and how it talks to the other ranks.
//
// Every value is decided. `run` makes these settings from the user's options (run/resolve/runtime_settings.h); a
// program that has no options fills in what it needs.
#pragma once

#include <chrono>
#include <cstdint>

#include "megalith/layout/grid_shape.h"
#include "megalith/parallel/nccl_options.h"
#include "megalith/parallel/rank_device.h"

namespace megalith::parallel {

// How the seeds of the ranks follow from the seed of the run. The formulas are those of layout/rng_seeds.h.
enum class SeedRule {
  kAdapter,             // mcore_adapter: the same on all ranks (adapter_seeds)
  kMegatron,            // Megatron-LM: another one for each pipeline stage (launcher_seeds)
  kMegatronPerReplica,  // its data_parallel_random_init: and for each data-parallel rank
};

struct SeedSettings {
  int64_t seed = 42;  // positive
  SeedRule rule = SeedRule::kAdapter;
};

// Switches of libtorch that hold for the whole process.
struct LibrarySwitches {
  bool deterministic = false;  // only kernels that give the same bits in every run
  bool tf32 = false;           // matrix products of fp32 may round their inputs to TF32; only GPUs do that
};

struct RuntimeSettings {
  layout::GridShape grid{};  // world_size is not read: it is the number of ranks that the launcher has started
  SeedSettings seeds{};
  LibrarySwitches switches{};
  DeviceSettings device{};
  std::chrono::milliseconds collective_timeout = std::chrono::seconds(1800);
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);  // to reach the store at the start
  NcclOptions nccl{};
};

}  // namespace megalith::parallel
