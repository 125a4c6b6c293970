// Runtime: takes a process from RuntimeSettings to a ParallelContext, and out of the run again.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "megalith/comm/world.h"
#include "megalith/layout/rng_seeds.h"
#include "megalith/parallel/parallel_context.h"
#include "megalith/parallel/runtime_settings.h"

namespace megalith::parallel {

// Selects the ranks of a pipeline that share the word embedding and the position embedding (Megatron's
// get_embedding_ranks and get_position_embedding_ranks).
struct EmbeddingRanks {
  layout::PipelineRanks word = layout::first_and_last_stage;
  layout::PipelineRanks position = layout::first_stage;
};

// Sets libtorch's switches. Our own choice of kernels follows `deterministic` as well.
void apply_library_switches(const LibrarySwitches& switches);

// Returns the seeds of one rank. Throws ConfigError for a seed that is not positive or when two streams would share
// one.
layout::RngSeeds rng_seeds(const SeedSettings& seeds, const layout::RankGrid& grid, int rank);

// A process's connection and context, with the rules of initialize_megatron: groups are created once, seeds are set at
// every call. Create one per process (or per rank thread) and pass its context around.
class Runtime {
 public:
  Runtime() = default;
  // For ranks that are threads: uses `world`, which must outlive it, instead of connecting.
  explicit Runtime(comm::World& world) : world_(&world) {}
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // 1. If not connected: chooses the device and makes it current (rank_device.h), takes a share of the CPU
  //    (cpu_share.h), and finds the other ranks from the launcher's variables.
  // 2. If there are no groups: builds the rank grid from the sizes in the settings and the number of ranks. Existing
  //    groups stay; sizes that differ from theirs cause a warning.
  // 3. Always: seeds every random stream again, and libtorch's default generator for the CPU.
  // `on_stuck`: see comm::WorldOptions.
  // Throws ConfigError for impossible sizes or a seed that is not positive (before anything is connected) and for two
  // ranks of an NCCL run on one GPU, CommError when the other ranks cannot be reached.
  ParallelContext& initialize(const RuntimeSettings& settings,
                              std::function<void(const std::string&)> on_stuck = nullptr,
                              const EmbeddingRanks& embedding_ranks = {});

  // Returns whether groups exist. A connected process without groups (after shutdown_groups) is legal; false then.
  bool is_initialized() const { return context_ != nullptr; }
  // Throws InternalError before initialize.
  ParallelContext& context();

  // Releases the groups and keeps the connection; the next initialize may choose other sizes.
  void shutdown_groups();
  // Waits for the other ranks and leaves. The next initialize connects again.
  void shutdown();

 private:
  void connect(const RuntimeSettings& settings, std::function<void(const std::string&)> on_stuck);

  std::unique_ptr<comm::World> own_world_;
  comm::World* world_ = nullptr;
  at::Device device_ = at::kCPU;
  std::unique_ptr<ParallelContext> context_;
};

}  // namespace megalith::parallel
