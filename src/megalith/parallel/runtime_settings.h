// Facts that a rank needs to join a run: layout, seeds, device, and how it communicates with other ranks.
//
// All values are final. `run` derives these settings from the user's options (run/resolve/runtime_settings.h); a
// program without options fills in what it needs.
#pragma once

#include <chrono>
#include <cstdint>

#include "megalith/layout/grid_shape.h"
#include "megalith/parallel/nccl_options.h"
#include "megalith/parallel/rank_device.h"

namespace megalith::parallel {

// How the seeds of the ranks follow from the seed of the run; the formulas are in layout/rng_seeds.h.
enum class SeedRule {
  kAdapter,             // mcore_adapter: the same on all ranks (adapter_seeds)
  kMegatron,            // Megatron-LM: different for each pipeline stage (launcher_seeds)
  kMegatronPerReplica,  // with data_parallel_random_init: also for each data-parallel rank
};

// The seed of the run and how ranks derive theirs.
struct SeedSettings {
  int64_t seed = 42;  // positive
  SeedRule rule = SeedRule::kAdapter;
};

// Process-wide switches of libtorch.
struct LibrarySwitches {
  bool deterministic = false;  // only kernels that give the same bits in every run
  bool tf32 = false;           // fp32 matrix products may round their inputs to TF32 (GPUs only)
};

// Everything that Runtime::initialize needs.
struct RuntimeSettings {
  layout::GridShape grid{};  // world_size is ignored: it is the number of ranks that the launcher started
  SeedSettings seeds{};
  LibrarySwitches switches{};
  DeviceSettings device{};
  std::chrono::milliseconds collective_timeout = std::chrono::seconds(1800);
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);  // to reach the store at the start
  NcclOptions nccl{};
};

}  // namespace megalith::parallel
