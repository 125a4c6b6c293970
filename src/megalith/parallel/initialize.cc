#include "megalith/parallel/initialize.h"

#include <ATen/Context.h>
#include <fmt/format.h>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/config/derive.h"
#include "megalith/parallel/cpu_share.h"
#include "megalith/parallel/gpu_count.h"
#include "megalith/parallel/nccl_options.h"
#include "megalith/parallel/rank_device.h"

namespace megalith::parallel {

namespace {

// Cores and threads of a rank that is not alone on its machine. (Alone it keeps all of them.) Our own launcher has
// divided the threads before it became a rank.
void take_cpu_share(const comm::Rendezvous& place, at::Device device) {
  if (place.local_world_size == 1) return;
  if (!env_flag("MEGALITH_LAUNCHER")) divide_threads(place.local_world_size);
  if (const auto gpu = gpu_identity(device)) bind_to_gpu_node(gpu->pci_bus_id);
}

std::string sizes_text(const layout::GridShape& shape) {
  return fmt::format("tp={} pp={} vpp={} cp={} ep={} etp={} order={}", shape.tp, shape.pp,
                     shape.vpp ? std::to_string(*shape.vpp) : "none", shape.cp, shape.ep, shape.expert_tp(),
                     shape.order);
}

}  // namespace

void apply_library_switches(const config::SeedConfig& seeds, const config::PrecisionConfig& precision) {
  at::globalContext().setDeterministicFillUninitializedMemory(false);  // of no use: nothing reads such memory
  at::globalContext().setDeterministicAlgorithms(seeds.full_determinism, /*warn_only=*/true);
  at::globalContext().setDeterministicCuDNN(seeds.full_determinism);
  at::globalContext().setAllowTF32CuBLAS(precision.tf32.value_or(false));
}

Runtime::~Runtime() = default;

void Runtime::connect(const config::TrainingArguments& args, std::function<void(const std::string&)> on_stuck) {
  const comm::Rendezvous place = comm::rendezvous_from_env();
  // Impossible sizes are found here, on every rank, before any of them waits for another.
  [[maybe_unused]] const layout::RankGrid possible(config::grid_shape(args, place.world_size));
  device_ =
      enter_device({visible_gpus(), place.local_rank, place.local_world_size, args.comm.use_cpu, args.comm.backend});
  if (place.rank == 0 && place.restarts == 0) warn_of_unused_gpus(args.comm);
  take_cpu_share(place, device_);

  comm::WorldOptions options;
  options.backend = config::comm_backend(args, device_.is_cuda()) == config::CommBackend::kNccl ? "nccl" : "gloo";
  options.device = device_;
  options.timeout = std::chrono::seconds(config::comm_timeout_s(args));
  if (args.comm.store_connect_timeout_s)
    options.connect_timeout = std::chrono::seconds(*args.comm.store_connect_timeout_s);
  options.debug = env_flag("MEGALITH_COMM_DEBUG");
  options.interface = env_string("MEGALITH_SOCKET_IFNAME").value_or(env_string("GLOO_SOCKET_IFNAME").value_or(""));
  options.on_stuck = std::move(on_stuck);
  options.nccl = nccl_settings(args.comm);
  auto world = comm::World::connect(place, options);
  claim_gpu(*world, device_);
  own_world_ = std::move(world);
  world_ = own_world_.get();
}

ParallelContext& Runtime::initialize(const config::TrainingArguments& args,
                                     std::function<void(const std::string&)> on_stuck,
                                     const EmbeddingRanks& embedding_ranks) {
  layout::checked_seed(args.seeds.seed);
  apply_library_switches(args.seeds, args.precision);
  if (world_ == nullptr) connect(args, std::move(on_stuck));
  if (args.precision.tf32.value_or(false) && !device_.is_cuda() && world_->rank() == 0)
    log_warning("tf32 has no effect on the CPU");
  const layout::GridShape shape = config::grid_shape(args, world_->size());
  if (!context_) {
    context_ = std::make_unique<ParallelContext>(
        *world_, layout::RankGrid(shape, embedding_ranks.word, embedding_ranks.position), device_);
  } else if (sizes_text(shape) != sizes_text(context_->grid().shape())) {
    log_warning(
        "initialize_megatron was called again with other sizes ({}); the groups of the first call stay ({}). Call"
        " shutdown_megatron() in between to change them.",
        sizes_text(shape), sizes_text(context_->grid().shape()));
  }
  context_->rng().seed(config::rng_seeds(args, context_->grid(), context_->rank()));
  return *context_;
}

ParallelContext& Runtime::context() {
  check(context_ != nullptr, "the parallel context is used before initialize_megatron");
  return *context_;
}

void Runtime::shutdown_groups() { context_.reset(); }

void Runtime::shutdown() {
  context_.reset();
  if (!own_world_) return;
  const auto world = std::move(own_world_);
  world_ = nullptr;
  world->close();
}

namespace {

Runtime& default_runtime() {
  static Runtime runtime;
  return runtime;
}

}  // namespace

ParallelContext& initialize_megatron(const config::TrainingArguments& args) {
  return default_runtime().initialize(args);
}
bool is_distribute_initialized() { return default_runtime().is_initialized(); }
void shutdown_megatron() { default_runtime().shutdown(); }

}  // namespace megalith::parallel
