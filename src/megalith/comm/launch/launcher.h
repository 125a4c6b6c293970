// Starts the ranks of this machine, watches them, and ends them together.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "megalith/comm/launch/rank_watch.h"
#include "megalith/comm/store/restarts.h"

namespace megalith::comm {

// The flags of `--nproc` and its companions.
struct LaunchOptions {
  int nproc = 1;            // ranks on this machine
  int nnodes = 1;           // machines; each runs the launcher with the same nproc
  int node_rank = 0;        // this machine, from 0; machine 0 serves the store
  std::string master_addr;  // machine 0; may be empty there
  int master_port = 0;      // 0 means any free port (one machine only)
  // Folder for log_dir/rank-N.log. If empty, the ranks' output goes to this terminal, each line with its rank, except
  // rank 0's stdout, which is that of the command.
  std::string log_dir;
  // Gives rank 0 the terminal as its stderr, so that it can draw a live line; only without log_dir.
  bool rank0_talks = false;
  // How long machines other than 0 try to reach machine 0 (store_connect_timeout).
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(600);
  // Time from the request to end (SIGTERM) to the forced end (SIGKILL).
  std::chrono::milliseconds grace = std::chrono::seconds(10);
  // Whether `grace` also applies after a first SIGINT or SIGTERM. If false, ranks take the time they need to finish a
  // step and save.
  bool kill_after_signal = true;
  // How many times the ranks may be restarted after one died, hung or failed; on one machine (on several, use
  // torchrun).
  int max_restarts = 0;
  // Restarts keep the processes of ranks that only another's failure has ended: they wait, and only lost ranks are
  // started again (RankLaunch::wait_for_next_start). Needs max_restarts.
  bool in_process = false;
  // Exit codes after which a restart would only fail in the same way.
  std::function<bool(int exit_code)> is_final = [](int) { return false; };
  // An exit code that asks for other devices: after it, each rank gets the device of its neighbor (LOCAL_RANK).
  int elsewhere_code = -1;
  // Ranks that show no sign of life for this long are hanging. std::nullopt if ranks show none.
  std::optional<SectionLimits> limits{};
  // Learns those of `limits` that are not given, and uses them at once (learned_limits.h). On several machines each
  // launcher learns from its own ranks, and machine 0 keeps what it has learned. Needs `limits`.
  std::optional<LimitLearning> learning{};

  // Throws ConfigError listing every problem.
  void validate() const;
};

// Returns the NCCL_HOSTID of one rank if the launcher's own contains %r, which stands for the rank; std::nullopt
// otherwise. NCCL then treats ranks as separate machines and lets them share a GPU: for tests on one GPU.
std::optional<std::string> nccl_host_of_rank(const std::optional<std::string>& launcher_host, int rank);

// The main function of a rank; returns its exit code.
using RankMain = std::function<int(const RankLaunch&)>;

// Runs `rank_main` in `nproc` child processes and returns when all have ended.
//
// Children are forked rather than executed, so the program is loaded once. Call this before any thread exists. In a
// child the variables RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set
// (rendezvous_from_env reads them), and the number of CPU threads is its share of the machine.
//
// SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 are forwarded to all children; a second SIGINT or SIGTERM kills them. So
// does the first one if ranks would save at a signal (kill_after_signal is false) and show signs of life (limits), and
// the first step has not begun: there is nothing to save.
// When a child fails, the other ranks of the run (on all machines) are told and ended, and one report names the first
// to fail, how it failed, and its last lines; the output of the others after that is a consequence and is not shown on
// a terminal. No child outlives the launcher, however the launcher ends.
//
// With max_restarts all ranks are then started again (with in_process, only those whose processes are gone), unless a
// signal ended the run. The launcher reports on stderr what was lost, how long it took to detect the failure and to run
// again, and the useful share of the time.
//
// Returns 0, the exit code of the first child that failed (1 if a signal ended it), or 128 + the signal that ended the
// run; also 0 when all ranks ended successfully after a signal. Throws CommError when the port is not available.
int launch_ranks(const LaunchOptions& options, const RankMain& rank_main);
// For ranks that do not need to know how they were started.
int launch_ranks(const LaunchOptions& options, const std::function<int()>& rank_main);

}  // namespace megalith::comm
