// The options that start ranks, shared by every command that runs on several ranks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/comm/launch/launcher.h"
#include "megalith/config/parser.h"
#include "megalith/run/resolve/run_settings.h"

namespace megalith::run {

// --nproc N on one machine, with --nnodes, --node_rank, --master_addr and --master_port on several; --log_dir.
// The parser keeps pointers to its members, so it must not move while that runs.
struct LaunchFlags {
  std::optional<int64_t> nproc, nnodes, node_rank, master_port;
  std::optional<std::string> master_addr, log_dir;
  // --force: start although the machine has too few cores for the ranks, or too little memory for the run.
  bool force = false;
  // Set for runs: ranks handle a first signal themselves and stop gracefully (StopOnSignal), and rank 0 writes to the
  // terminal.
  bool ends_in_order = false;
  // Restarts and the watchdog, for runs only, under the names of the fault-tolerance launcher: --max_restarts,
  // --rank_section_timeouts, --rank_out_of_section_timeout, --ft_safety_factor.
  std::optional<int64_t> max_restarts;
  std::optional<std::string> rank_section_timeouts;
  std::optional<double> rank_out_of_section_timeout, ft_safety_factor;

  std::vector<config::CommandOption> options();
  // Returns the options above and those for runs.
  std::vector<config::CommandOption> run_options();
  // Turns on the watchdog: ranks send heartbeats (RankLaunch::heartbeat), and the launcher detects hung ones.
  // Throws ConfigError for what only a launcher can do, if there is none: learned limits, restarts in processes.
  void look_after(const config::FaultConfig& fault);
  // If the settings ask for it, limits that are not given are learned, kept in the output folder (ft_state.h) and, from
  // an earlier run, read from there.
  void learn_limits(const RunSettings& settings);
  // Returns the time limits of heartbeats; std::nullopt before look_after. Throws ConfigError.
  std::optional<comm::SectionLimits> limits() const;
  // Returns the ranks of the run according to the flags, or else to the launcher's variables.
  RunWorld world() const;
  // Returns whether this process begins the run, as far as it can know alone: no other machine or rank can have begun
  // it, and it is not a restart. False where ranks have to agree on that (Rendezvous::counts_alone).
  bool begins_run() const;
  // Checks that this machine can run the ranks: the flags are consistent, the backend is built in, and there are enough
  // GPUs or, for ranks on the CPU and without `force`, cores. Throws ConfigError. Keeps store_connect_timeout, which
  // the launcher itself needs.
  void check(const config::CommConfig& comm);
  // Returns what the flags ask of the launcher. Throws ConfigError for inconsistent ones.
  comm::LaunchOptions launch_options() const;
  // Runs `rank_main` in the ranks that the flags request, or, without --nproc, in this process. Returns an exit code.
  int run(const std::function<int()>& rank_main) const;
  int run(const comm::RankMain& rank_main) const;

 private:
  void check_without_nproc() const;
  void check_cores(int ranks, const config::CommConfig& comm) const;

  std::optional<int> warmup_steps_, connect_timeout_s_;
  std::filesystem::path ft_state_;  // the file with learned limits; empty if none are learned
  bool saves_in_background_ = false, in_process_ = false;
};

}  // namespace megalith::run
