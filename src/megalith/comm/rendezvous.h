// How the ranks of a run find one another: who am I, how many are we, where is the store.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>

namespace c10d {
class Store;
}

namespace megalith::comm {

// This process's place in the run, before anything is connected.
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

  bool alone() const { return world_size == 1; }
  // torchrun's agents start ranks again, but each counts for itself: the ranks have to agree (agreed_start.h).
  bool counts_alone() const { return source == kTorchrun && !alone(); }

  static constexpr const char* kTorchrun = "torchrun";
};

// Reads one environment variable; env_string outside of tests.
using EnvReader = std::function<std::optional<std::string>(const char*)>;

// The place that the launcher's variables describe: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
// MASTER_PORT (torchrun, also set by --nproc), else SLURM_* (of a job step with several tasks), else OMPI_*. With none
// of them: a single process. Throws ConfigError naming every variable that is missing or wrong.
Rendezvous rendezvous_from_env(const EnvReader& read);
Rendezvous rendezvous_from_env();

// First host of a Slurm node list: "gpu[03-06,9],login" -> "gpu03".
std::string first_slurm_host(const std::string& node_list);

// Where this machine's packets to a host leave: {"10.0.0.7", "eth0"}; nothing when the host name does not resolve.
// Sends nothing.
struct Route {
  std::string address;
  std::string interface;
};
std::optional<Route> route_to(const std::string& host, int port);

// Settings of c10d itself, once a process, before anything of it is used. connect_store does it. SIGPIPE is ignored
// from then on, unless the program has a handler of its own.
void prepare_c10d();

// Connects to (or serves) the store. Throws CommError naming host, port, the address it resolves to and the interface
// used, and what to check, within `timeout`.
c10::intrusive_ptr<c10d::Store> connect_store(const Rendezvous& place, std::chrono::milliseconds timeout);

}  // namespace megalith::comm
