// The options that start ranks: shared by every command that runs on several.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/comm/launch/launcher.h"
#include "megalith/config/parser.h"
#include "megalith/run/resolve/run_settings.h"

namespace megalith::run {

// --nproc N on one machine, with --nnodes, --node_rank, --master_addr and --master_port on several; --log_dir.
// Declares itself to the parser, so it must not move while that runs.
struct LaunchFlags {
  std::optional<int64_t> nproc, nnodes, node_rank, master_port;
  std::optional<std::string> master_addr, log_dir;
  // A run: ranks answer a first signal themselves, in their own time (StopOnSignal), and rank 0 talks to the terminal.
  bool ends_in_order = false;
  // A run's own: starting again and looking after ranks. --max_restarts, --rank_section_timeouts,
  // --rank_out_of_section_timeout (names of the fault-tolerance launcher).
  std::optional<int64_t> max_restarts;
  std::optional<std::string> rank_section_timeouts;
  std::optional<double> rank_out_of_section_timeout;

  std::vector<config::CommandOption> options();
  // Those and the run's own.
  std::vector<config::CommandOption> run_options();
  // Ranks show signs of life (RankLaunch::heartbeat): hung ones are found.
  void look_after(const config::FaultConfig& fault) { warmup_steps_ = fault.ft_num_warmup_iters; }
  // Of those signs; nothing before look_after. Throws ConfigError.
  std::optional<comm::SectionLimits> limits() const;
  // All ranks of the run as far as the flags, or else the launcher's variables, say.
  RunWorld world() const;
  // Whether this process begins the run, as far as it can know alone: no other machine or rank may have begun it, and
  // it is not started again. False where ranks have to agree on that (Rendezvous::counts_alone).
  bool begins_run() const;
  // The machine can run the ranks: the flags go together, the backend is there, and there are GPUs enough. Throws
  // ConfigError. Keeps what the launcher itself needs of the options: store_connect_timeout.
  void check(const config::CommConfig& comm);
  // Runs `rank_main` in the ranks that the flags ask for, or, without --nproc, in this process.
  int run(const std::function<int()>& rank_main) const;
  int run(const comm::RankMain& rank_main) const;

 private:
  void check_without_nproc() const;
  comm::LaunchOptions launch_options() const;

  std::optional<int> warmup_steps_, connect_timeout_s_;
};

}  // namespace megalith::run
