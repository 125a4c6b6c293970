// Joins a run in a fixed order, so that mistakes show up early and on every rank: the seed and the layout are checked
// before anything is connected; the device is made current before anything uses it; cores are bound before threads
// start; the GPU is claimed as soon as the ranks can reach each other, before the first collective.
#include "megalith/parallel/runtime.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <fmt/format.h>

#include <mutex>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/parallel/cpu_share.h"
#include "megalith/parallel/gpu_count.h"

namespace megalith::parallel {

namespace {

// Takes the cores and threads of a rank that is not alone on its machine; a rank that is alone keeps all of them. Our
// own launcher has already divided the threads.
void take_cpu_share(const comm::Rendezvous& place, at::Device device) {
  if (place.local_world_size == 1) return;
  if (!env_flag("MEGALITH_LAUNCHER")) divide_threads(place.local_world_size);
  if (const auto gpu = gpu_identity(device)) bind_to_gpu_node(gpu->pci_bus_id);
}

// Two layouts with the same text have the same groups.
std::string sizes_text(const layout::GridShape& shape) {
  return fmt::format("tp={} pp={} vpp={} cp={} ep={} etp={} order={}", shape.tp, shape.pp,
                     shape.vpp ? std::to_string(*shape.vpp) : "none", shape.cp, shape.ep, shape.expert_tp(),
                     shape.order);
}

// Settings are made before the number of ranks is known for certain; the launcher's variables decide.
layout::GridShape with_world_size(layout::GridShape shape, int world_size) {
  shape.world_size = world_size;
  return shape;
}

// Returns the name that WorldOptions uses; an empty text leaves the choice to the device.
const char* backend_name(BackendChoice backend) {
  switch (backend) {
    case BackendChoice::kNccl:
      return "nccl";
    case BackendChoice::kGloo:
      return "gloo";
    case BackendChoice::kByDevice:
      break;
  }
  return "";
}

}  // namespace

layout::RngSeeds rng_seeds(const SeedSettings& seeds, const layout::RankGrid& grid, int rank) {
  if (seeds.rule == SeedRule::kAdapter) return layout::adapter_seeds(seeds.seed, grid, rank);
  return layout::launcher_seeds(seeds.seed, seeds.rule == SeedRule::kMegatronPerReplica, grid, rank);
}

void apply_library_switches(const LibrarySwitches& switches) {
  at::globalContext().setDeterministicFillUninitializedMemory(false);  // useless here: nothing reads such memory
  // warn_only: an operation without a deterministic form warns instead of ending the run.
  at::globalContext().setDeterministicAlgorithms(switches.deterministic, /*warn_only=*/true);
  at::globalContext().setDeterministicCuDNN(switches.deterministic);
  at::globalContext().setAllowTF32CuBLAS(switches.tf32);
  at::globalContext().setAllowTF32CuDNN(switches.tf32);  // convolutions of audio towers
  // Parts of a sum are added in fp32 and rounded once. (libtorch would let cuBLAS round each part to 16 bits.)
  at::globalContext().setAllowBF16ReductionCuBLAS(false);
  at::globalContext().setAllowFP16ReductionCuBLAS(false);
}

Runtime::~Runtime() = default;

void Runtime::connect(const RuntimeSettings& settings, std::function<void(const std::string&)> on_stuck) {
  const comm::Rendezvous rendezvous = comm::rendezvous_from_env();
  // Impossible sizes are found here, on every rank, before any of them waits for another.
  [[maybe_unused]] const layout::RankGrid possible(with_world_size(settings.grid, rendezvous.world_size));
  device_ = enter_device({visible_gpus(), rendezvous.local_rank, rendezvous.local_world_size, settings.device});
  if (rendezvous.rank == 0 && rendezvous.restarts == 0) warn_of_unused_gpus(settings.device);
  take_cpu_share(rendezvous, device_);

  comm::WorldOptions options;
  options.backend = backend_name(settings.device.backend);
  options.device = device_;
  options.timeout = settings.collective_timeout;
  options.connect_timeout = settings.connect_timeout;
  options.debug = env_flag("MEGALITH_COMM_DEBUG");
  options.interface = env_string("MEGALITH_SOCKET_IFNAME").value_or(env_string("GLOO_SOCKET_IFNAME").value_or(""));
  options.on_stuck = std::move(on_stuck);
  options.nccl = nccl_settings(settings.nccl);
  auto world = comm::World::connect(rendezvous, options);
  claim_gpu(*world, device_);
  own_world_ = std::move(world);
  world_ = own_world_.get();
}

ParallelContext& Runtime::initialize(const RuntimeSettings& settings, std::function<void(const std::string&)> on_stuck,
                                     const EmbeddingRanks& embedding_ranks) {
  layout::checked_seed(settings.seeds.seed);
  apply_library_switches(settings.switches);
  if (world_ == nullptr) connect(settings, std::move(on_stuck));
  if (settings.switches.tf32 && !device_.is_cuda() && world_->rank() == 0) log_warning("tf32 has no effect on the CPU");
  const layout::GridShape shape = with_world_size(settings.grid, world_->size());
  // A second call keeps the groups and seeds again, as the reference's initialize does.
  if (!context_) {
    context_ = std::make_unique<ParallelContext>(
        *world_, layout::RankGrid(shape, embedding_ranks.word, embedding_ranks.position), device_);
  } else if (sizes_text(shape) != sizes_text(context_->grid().shape())) {
    log_warning(
        "initialize_megatron was called again with other sizes ({}); the groups of the first call stay ({}). Call"
        " shutdown_megatron() in between to change them.",
        sizes_text(shape), sizes_text(context_->grid().shape()));
  }
  const layout::RngSeeds seeds = rng_seeds(settings.seeds, context_->grid(), context_->rank());
  context_->rng().seed(seeds);
  // As torch.manual_seed does: at::rand in a program's own collator or loss is reproducible, too.
  at::Generator process = at::detail::getDefaultCPUGenerator();
  const std::lock_guard lock(process.mutex());
  process.set_current_seed(static_cast<uint64_t>(seeds.cpu));
  return *context_;
}

ParallelContext& Runtime::context() {
  check(context_ != nullptr, "the parallel context is used before initialize_megatron");
  return *context_;
}

void Runtime::shutdown_groups() { context_.reset(); }

// Forgets the world before closing it: if close() throws, the next initialize still starts from nothing.
void Runtime::shutdown() {
  context_.reset();
  if (!own_world_) return;
  const auto world = std::move(own_world_);
  world_ = nullptr;
  world->close();
}

}  // namespace megalith::parallel
