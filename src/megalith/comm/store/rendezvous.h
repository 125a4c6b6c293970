// How the ranks of a run find one another: this rank's number, the number of ranks, and the address of the store.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/comm/store/network.h"

namespace c10d {
class Store;
}

namespace megalith::comm {

// This process's place in the run, known before anything is connected.
struct Rendezvous {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // place among the ranks of this machine: the GPU to use
  int local_world_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  bool hosts_store = false;  // this process serves the store; otherwise a launcher or another rank does
  std::string source;        // "torchrun", "Slurm", "Open MPI", "megalith --nproc", "single process"
  int restarts = 0;          // starts of the job before this one, as torchrun's agent counts them

  // alone(): a run of one rank, which needs no store; one_machine(): all ranks are here, so loopback reaches them.
  bool alone() const { return world_size == 1; }
  bool one_machine() const { return local_world_size == world_size; }
  // torchrun's agents restart ranks, but each counts for itself, so the ranks have to agree (agreed_start.h).
  bool counts_alone() const { return source == kTorchrun && !alone(); }

  static constexpr const char* kTorchrun = "torchrun";
};

// Reads one environment variable; env_string except in tests.
using EnvReader = std::function<std::optional<std::string>(const char*)>;

// Returns the place that the launcher's variables describe: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
// MASTER_ADDR, MASTER_PORT (torchrun, also set by --nproc), else SLURM_* (of a job step with several tasks), else
// OMPI_*. Without any of them: a single process. Throws ConfigError naming every variable that is missing or wrong.
Rendezvous rendezvous_from_env(const EnvReader& read);
Rendezvous rendezvous_from_env();

// Returns the first host of a Slurm node list: "gpu[03-06,9],login" -> "gpu03".
std::string first_slurm_host(const std::string& node_list);
// Returns the tasks on each node, in the order of the nodes: "8(x2),4" -> {8, 8, 4}. std::nullopt for other texts.
std::optional<std::vector<int>> slurm_task_counts(const std::string& text);

// Returns how long ranks try to reach the store by default: a minute on one machine, ten on several, where containers
// and file systems start at different times.
std::chrono::milliseconds default_connect_timeout(bool one_machine);

// Connects to (or serves) the store, after prepare_c10d; see LastingStore. After `timeout` throws CommError naming
// host, port, the address it resolves to, the interface used, and what to check.
c10::intrusive_ptr<c10d::Store> connect_store(const Rendezvous& place, std::chrono::milliseconds timeout);

}  // namespace megalith::comm
