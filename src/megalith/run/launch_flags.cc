// Ranks come from one of two places. With --nproc this process starts them itself and watches over them; without it, it
// is a rank that torchrun, Slurm or Open MPI has started, and the flags that only a launcher can obey are refused.
#include "megalith/run/launch_flags.h"

#include <algorithm>
#include <thread>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/comm/store/rendezvous.h"
#include "megalith/comm/world.h"
#include "megalith/parallel/gpu_count.h"
#include "megalith/run/exit_code.h"
#include "megalith/run/ft_state.h"
#include "megalith/run/resolve/runtime_settings.h"
#include "megalith/train/faults/rerun_machine.h"

namespace megalith::run {

namespace {

// Command options are 64 bits wide; ports, ranks and counts are not.
int to_int(const std::optional<int64_t>& value, int otherwise) {
  if (!value) return otherwise;
  check<ConfigError>(*value >= INT32_MIN && *value <= INT32_MAX, "{} is too large for a launch option", *value);
  return static_cast<int>(*value);
}

}  // namespace

// Flags that every command with ranks has, named as torchrun names them.
std::vector<config::CommandOption> LaunchFlags::options() {
  return {{"nproc", "ranks to start on this machine; without it the variables of torchrun, Slurm or Open MPI are read",
           &nproc},
          {"nnodes", "machines, each started with the same command and its own --node_rank", &nnodes},
          {"node_rank", "this machine, from 0", &node_rank},
          {"master_addr", "name or address of machine 0", &master_addr},
          {"master_port", "a free port of machine 0; on one machine any free one is found", &master_port},
          {"log_dir", "write the output of each rank to rank-N.log in this folder", &log_dir},
          {"force", "start even if there are too few cores for the ranks, or too little memory for the run", &force}};
}

// Flags of commands that train: they can save, so they can be restarted. Names follow NVIDIA's resiliency extension.
std::vector<config::CommandOption> LaunchFlags::run_options() {
  auto all = options();
  all.push_back({"max_restarts",
                 "how often to restart the ranks from the newest checkpoint when one dies, hangs or fails",
                 &max_restarts});
  all.push_back({"rank_section_timeouts",
                 "seconds without a heartbeat after which a rank counts as hung:"
                 " setup:1800,step:1800,checkpointing:1800",
                 &rank_section_timeouts});
  all.push_back(
      {"rank_out_of_section_timeout", "the same outside these sections (1800)", &rank_out_of_section_timeout});
  all.push_back({"ft_safety_factor", "with calc_ft_timeouts: a limit is this many times the longest time seen (5)",
                 &ft_safety_factor});
  return all;
}

void LaunchFlags::look_after(const config::FaultConfig& fault) {
  warmup_steps_ = fault.ft_num_warmup_iters;
  in_process_ = fault.inprocess_restart;
  megalith::check<ConfigError>(!fault.calc_ft_timeouts || nproc,
                               "calc_ft_timeouts needs --nproc: the limits are for the signs of life that Megalith's"
                               " own launcher watches; torchrun, Slurm and Open MPI do not see them. Leave it out, or"
                               " start the ranks with --nproc");
  megalith::check<ConfigError>(!in_process_ || nproc,
                               "inprocess_restart needs --nproc and --max_restarts: Megalith's own launcher starts the"
                               " lost ranks again. Leave it out under torchrun, whose agents restart all ranks");
}

void LaunchFlags::learn_limits(const RunSettings& settings) {
  if (!settings.learns_limits) return;
  ft_state_ = settings.output.folder / kFtStateFile;
  saves_in_background_ = settings.trainer.save.in_background;
}

// Without look_after() nobody sends heartbeats, and there is nothing to limit.
std::optional<comm::SectionLimits> LaunchFlags::limits() const {
  if (!warmup_steps_) return std::nullopt;
  comm::SectionLimits limits;
  limits.warmup_steps = *warmup_steps_;
  if (rank_section_timeouts) limits.set(*rank_section_timeouts);
  megalith::check<ConfigError>(rank_out_of_section_timeout.value_or(1) > 0,
                               "rank_out_of_section_timeout is {}; it must be a positive number of seconds",
                               rank_out_of_section_timeout.value_or(1));
  if (rank_out_of_section_timeout) limits.outside = comm::SectionLimits::Seconds(*rank_out_of_section_timeout);
  if (!ft_state_.empty()) limits.learned = read_ft_state(ft_state_);
  return limits;
}

comm::LaunchOptions LaunchFlags::launch_options() const {
  comm::LaunchOptions launch;
  launch.nproc = to_int(nproc, 1);
  launch.nnodes = to_int(nnodes, 1);
  launch.node_rank = to_int(node_rank, 0);
  launch.master_addr = master_addr.value_or(launch.master_addr);
  launch.master_port = to_int(master_port, 0);
  launch.log_dir = log_dir.value_or("");
  if (connect_timeout_s_) launch.connect_timeout = std::chrono::seconds(*connect_timeout_s_);
  // A run that saves on a signal must not be killed while it does.
  launch.kill_after_signal = !ends_in_order;
  launch.rank0_talks = ends_in_order;
  launch.max_restarts = to_int(max_restarts, 0);
  launch.in_process = in_process_;
  // A restart would meet the same mistake in the input, or the same rejected result; or the run is complete.
  launch.is_final = [](int code) {
    return code == kBadInput || code == kNotSaved || code == train::kExitResultRejected;
  };
  launch.elsewhere_code = train::kExitResumeElsewhere;
  launch.limits = limits();
  megalith::check<ConfigError>(ft_safety_factor.value_or(2) > 1,
                               "ft_safety_factor is {}; a limit must be longer than the times seen, so use more than 1",
                               ft_safety_factor.value_or(2));
  if (!ft_state_.empty())
    launch.learning = {
        .factor = ft_safety_factor.value_or(comm::LimitLearning{}.factor),
        .saves_in_background = saves_in_background_,
        .warmup_steps = *warmup_steps_,
        .keep = [file = ft_state_](const comm::LearnedLimits& learned) { write_ft_state(file, learned); }};
  launch.validate();
  return launch;
}

RunWorld LaunchFlags::world() const {
  if (!nproc) return world_of(comm::rendezvous_from_env());
  const comm::LaunchOptions launch = launch_options();
  return {.size = launch.nproc * launch.nnodes, .one_machine = launch.nnodes == 1};
}

// Exactly one process of a job may complain about an output folder that is not empty.
bool LaunchFlags::begins_run() const {
  if (nproc) return node_rank.value_or(0) == 0;
  const comm::Rendezvous place = comm::rendezvous_from_env();
  return place.rank == 0 && place.restarts == 0 && !place.counts_alone();
}

// Refuses flags that need a launcher when this process is not one.
void LaunchFlags::check_without_nproc() const {
  if (nproc) return;
  megalith::check<ConfigError>(!nnodes && !node_rank,
                               "--nnodes and --node_rank need --nproc: the number of ranks on each machine");
  megalith::check<ConfigError>(!max_restarts,
                               "--max_restarts needs --nproc: this process cannot start itself again;"
                               " with torchrun, give it --max-restarts");
}

// A few ranks per core are usual in tests of layouts. Beyond that even the start, in which every rank loads the model
// and meets every other, takes minutes, and a mistyped number looks like a hang.
void LaunchFlags::check_cores(int ranks, const config::CommConfig& comm) const {
  constexpr int kRanksPerCore = 4;
  const bool on_cpu = comm.use_cpu || !comm::nccl_available() ||
                      !parallel::usable_gpus(parallel::gpu_device_folder(), env_string("CUDA_VISIBLE_DEVICES"));
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  megalith::check<ConfigError>(force || !on_cpu || ranks <= kRanksPerCore * cores,
                               "--nproc is {}, and this machine has {} {}: so many ranks take minutes to start, and "
                               "compute more slowly than few."
                               " Use at most {} ({} per core), or --force to start them anyway",
                               ranks, cores, cores == 1 ? "core" : "cores", kRanksPerCore * cores, kRanksPerCore);
}

void LaunchFlags::check(const config::CommConfig& comm) {
  check_without_nproc();
  connect_timeout_s_ = comm.store_connect_timeout_s;
  // Mistakes that would otherwise show up once per rank are reported here, once.
  if (comm.backend == config::CommBackend::kNccl) comm::resolve_backend("nccl", !comm.use_cpu, comm::nccl_available());
  if (!nproc) return;
  parallel::check_gpus_for(launch_options().nproc, device_settings(comm));
  check_cores(launch_options().nproc, comm);
}

int LaunchFlags::run(const std::function<int()>& rank_main) const {
  return run(comm::RankMain([&](const comm::RankLaunch&) { return rank_main(); }));
}

int LaunchFlags::run(const comm::RankMain& rank_main) const {
  if (nproc) return comm::launch_ranks(launch_options(), rank_main);
  check_without_nproc();
  return rank_main(comm::launch_from_env());
}

}  // namespace megalith::run
