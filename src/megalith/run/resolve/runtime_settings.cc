// Settings of ranks: grid, seeds, device, time limits and NCCL.
#include "megalith/run/resolve/runtime_settings.h"

#include "megalith/config/derive.h"

namespace megalith::run {

namespace {

// data_parallel_random_init is Megatron's option: giving it to `train` selects Megatron's formula there, too.
parallel::SeedRule seed_rule(const config::TrainingArguments& args) {
  if (args.seeds.data_parallel_random_init) return parallel::SeedRule::kMegatronPerReplica;
  return args.dialect == config::Dialect::kTrain ? parallel::SeedRule::kAdapter : parallel::SeedRule::kMegatron;
}

// Megatron's minutes win over Hugging Face's seconds, which always have a value.
std::chrono::seconds collective_timeout(const config::CommConfig& comm) {
  if (comm.distributed_timeout_minutes) return std::chrono::minutes(*comm.distributed_timeout_minutes);
  return std::chrono::seconds(comm.ddp_timeout_s);
}

// Ranks on several machines may start minutes apart, so they wait longer.
std::chrono::milliseconds connect_timeout(const config::CommConfig& comm, const RunWorld& world) {
  if (comm.store_connect_timeout_s) return std::chrono::seconds(*comm.store_connect_timeout_s);
  return comm::default_connect_timeout(world.one_machine);
}

parallel::NcclOptions nccl_options(const config::TrainingArguments& args) {
  const config::CommConfig& comm = args.comm;
  parallel::NcclOptions options;
  if (comm.high_priority_stream_groups)
    options.high_priority_groups =
        parallel::nccl_groups_named(*comm.high_priority_stream_groups, "high_priority_stream_groups");
  options.config_file = comm.nccl_communicator_config_path;
  options.sharp = comm.use_sharp;
  options.overlapped_tp = args.parallel.tp_comm_overlap;
  return options;
}

}  // namespace

parallel::DeviceSettings device_settings(const config::CommConfig& comm) {
  parallel::DeviceSettings settings{.use_cpu = comm.use_cpu};
  if (comm.backend)
    settings.backend =
        *comm.backend == config::CommBackend::kNccl ? parallel::BackendChoice::kNccl : parallel::BackendChoice::kGloo;
  return settings;
}

RunWorld world_of(const comm::Rendezvous& place) { return {place.world_size, place.one_machine()}; }

parallel::RuntimeSettings runtime_settings(const config::TrainingArguments& args, const RunWorld& world) {
  return {.grid = config::grid_shape(args, world.size),
          .seeds = {.seed = args.seeds.seed, .rule = seed_rule(args)},
          .switches = {.deterministic = args.seeds.full_determinism, .tf32 = args.precision.tf32.value_or(false)},
          .device = device_settings(args.comm),
          .collective_timeout = collective_timeout(args.comm),
          .connect_timeout = connect_timeout(args.comm, world),
          .nccl = nccl_options(args)};
}

}  // namespace megalith::run
