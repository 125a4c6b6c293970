// Starts the ranks of this machine, looks after them, and ends them together.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>

#include "megalith/comm/launch/rank_watch.h"
#include "megalith/comm/store/restarts.h"

namespace megalith::comm {

struct LaunchOptions {
  int nproc = 1;            // ranks on this machine
  int nnodes = 1;           // machines; every one runs the launcher with the same nproc
  int node_rank = 0;        // this machine, from 0; machine 0 serves the store
  std::string master_addr;  // machine 0; may be empty there
  int master_port = 0;      // 0: any free port (one machine only)
  // Empty: the ranks' output goes to this terminal, each line with its rank, except what rank 0 writes to stdout, which
  // is the command's own. Else to log_dir/rank-N.log.
  std::string log_dir;
  // Rank 0 also has stderr as it is (a live line can be drawn there); without log_dir.
  bool rank0_talks = false;
  // How long a machine other than 0 tries to reach machine 0 (store_connect_timeout).
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(600);
  // Time from the request to end (SIGTERM) to the end by force (SIGKILL).
  std::chrono::milliseconds grace = std::chrono::seconds(10);
  // After a first SIGINT or SIGTERM, too. False: ranks end in their own time (they finish a step and save).
  bool kill_after_signal = true;
  // How often the ranks are started again after one of them died, hung or failed, on one machine (several: torchrun).
  int max_restarts = 0;
  // Exit codes after which a new start would only fail in the same way.
  std::function<bool(int exit_code)> is_final = [](int) { return false; };
  // An exit code that asks for other devices: after it, each rank gets the device of its neighbour (LOCAL_RANK).
  int elsewhere_code = -1;
  // Ranks that give no sign of life for so long hang. Nothing: ranks give none.
  std::optional<SectionLimits> limits{};

  // Throws ConfigError with every problem.
  void validate() const;
};

// The NCCL_HOSTID of one rank where the launcher's own has %r in it, which stands for the rank; nothing otherwise. NCCL
// takes such ranks for machines of their own and lets them share a GPU: for tests on one GPU.
std::optional<std::string> nccl_host_of_rank(const std::optional<std::string>& launcher_host, int rank);

// What a rank runs; returns its exit code.
using RankMain = std::function<int(const RankLaunch&)>;

// Runs `rank_main` in `nproc` child processes and returns when all have ended.
//
// Children are forked, not started anew: the program is loaded once. So call this before any thread exists. In a child
// the variables RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set
// (rendezvous_from_env reads them) and the number of CPU threads is its share of the machine.
//
// SIGINT, SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2 go on to all children; a second SIGINT or SIGTERM kills them. When a
// child fails, the other ranks of the run (on all machines) are told and ended, and one report names the first to fail,
// how, and its last words; what the others print after that is their echo and is left out on a terminal. No child
// outlives the launcher, however that ends.
//
// With max_restarts all ranks are then started again, unless a signal asked for the end. What was lost, how long it
// took to see the failure and to run again, and the share of the time that was of use are said on stderr.
//
// Returns 0, the exit code of the first child that failed (1 if a signal ended it), or 128 + the signal that ended the
// run; 0 as well when all ranks ended well after a signal. Throws CommError when the port cannot be had.
int launch_ranks(const LaunchOptions& options, const RankMain& rank_main);
// For ranks that need not know how they were started.
int launch_ranks(const LaunchOptions& options, const std::function<int()>& rank_main);

}  // namespace megalith::comm
