#include "megalith/cli/launch_flags.h"

#include "megalith/base/error.h"
#include "megalith/comm/rendezvous.h"
#include "megalith/comm/world.h"
#include "megalith/config/validate.h"

namespace megalith::cli {

namespace {

int to_int(const std::optional<int64_t>& value, int otherwise) {
  if (!value) return otherwise;
  check<ConfigError>(*value >= INT32_MIN && *value <= INT32_MAX, "{} is too large a number for a launch option",
                     *value);
  return static_cast<int>(*value);
}

}  // namespace

std::vector<config::CommandOption> LaunchFlags::options() {
  return {{"nproc", "ranks to start on this machine; without it the variables of torchrun, Slurm or Open MPI are read",
           &nproc},
          {"nnodes", "machines, each started with the same command and its own --node_rank", &nnodes},
          {"node_rank", "this machine, from 0", &node_rank},
          {"master_addr", "name or address of machine 0", &master_addr},
          {"master_port", "a free port of machine 0; on one machine any free one is found", &master_port},
          {"log_dir", "write the output of each rank to rank-N.log in this folder", &log_dir}};
}

comm::LaunchOptions LaunchFlags::launch_options() const {
  comm::LaunchOptions launch;
  launch.nproc = to_int(nproc, 1);
  launch.nnodes = to_int(nnodes, 1);
  launch.node_rank = to_int(node_rank, 0);
  launch.master_addr = master_addr.value_or(launch.master_addr);
  launch.master_port = to_int(master_port, 0);
  launch.log_dir = log_dir.value_or("");
  launch.kill_after_signal = !ends_in_order;
  launch.rank0_talks = ends_in_order;
  launch.validate();
  return launch;
}

int LaunchFlags::world_size() const {
  if (!nproc) return comm::rendezvous_from_env().world_size;
  const comm::LaunchOptions launch = launch_options();
  return launch.nproc * launch.nnodes;
}

void LaunchFlags::check(const config::TrainingArguments& args, bool needs_inputs) const {
  config::validate(args, {.world_size = world_size(), .needs_inputs = needs_inputs});
  // Which GPUs there are only the ranks may ask: the CUDA driver does not survive a fork.
  if (args.comm.backend == config::CommBackend::kNccl)
    comm::resolve_backend("nccl", !args.comm.use_cpu, comm::nccl_available());
}

int LaunchFlags::run(const std::function<int()>& rank_main) const {
  if (nproc) return comm::launch_ranks(launch_options(), rank_main);
  megalith::check<ConfigError>(!nnodes && !node_rank,
                               "--nnodes and --node_rank need --nproc: the number of ranks on each machine");
  return rank_main();
}

}  // namespace megalith::cli
