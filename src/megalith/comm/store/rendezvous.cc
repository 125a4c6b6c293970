// Translates the variables of each launcher into a Rendezvous, and connects to the store. A family of variables is read
// as a whole: all problems are collected and reported at once, since a user who fixes one at a time has to queue a job
// for each. When the store cannot be reached, the message says which address and interface were tried.
#include "megalith/comm/store/rendezvous.h"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <numeric>
#include <regex>
#include <vector>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/comm/store/lasting_store.h"

namespace megalith::comm {

namespace {

constexpr int kDefaultPort = 29500;  // torchrun's

// Reads a family of variables and collects what is wrong with them, so that one message tells all.
class Variables {
 public:
  explicit Variables(const EnvReader& read) : read_(read) {}

  bool has(const char* name) const { return read_(name).has_value(); }

  // A variable that is missing and has no `otherwise` is a problem; the caller continues with 0 to find further ones.
  int number(const char* name, std::optional<int> otherwise = std::nullopt) {
    const auto text = read_(name);
    if (!text) {
      if (!otherwise) problems_.push_back(fmt::format("{} is not set", name));
      return otherwise.value_or(0);
    }
    const auto value = parse_int(trim(*text));
    if (!value || *value < 0 || *value > 1 << 30)
      problems_.push_back(fmt::format("{} is \"{}\"; it must be a whole number from 0", name, *text));
    return static_cast<int>(value.value_or(0));
  }

  std::string text(const char* name, const std::optional<std::string>& otherwise = std::nullopt) {
    const auto value = read_(name);
    if (!value && !otherwise) problems_.push_back(fmt::format("{} is not set", name));
    return value ? *value : otherwise.value_or("");
  }

  void refuse(std::string problem) { problems_.push_back(std::move(problem)); }

  // One message with all problems and the ways to start ranks.
  void throw_if_any(const std::string& source) const {
    if (problems_.empty()) return;
    std::string message = fmt::format("the variables that {} sets for each rank are not usable:", source);
    for (const auto& problem : problems_) message += "\n  " + problem;
    throw ConfigError(message +
                      "\nStart ranks with `megalith … --nproc N`, torchrun, srun or mpirun, or set RANK,"
                      " WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT for every rank.");
  }

 private:
  const EnvReader& read_;
  std::vector<std::string> problems_;
};

// Checks that apply to every launcher.
void check_place(Variables& variables, const Rendezvous& place, const char* rank_name, const char* size_name) {
  if (place.world_size < 1)
    variables.refuse(fmt::format("{} is {}; it must be at least 1", size_name, place.world_size));
  else if (place.rank >= place.world_size)
    variables.refuse(fmt::format("{} is {} but {} is {}: ranks go from 0 to {}", rank_name, place.rank, size_name,
                                 place.world_size, place.world_size - 1));
  if (place.master_port > 65535)
    variables.refuse(fmt::format("MASTER_PORT is {}; ports go up to 65535", place.master_port));
}

// RANK and its companions are torchrun's convention, which our launcher and many scripts also use.
Rendezvous from_torchrun(Variables& variables) {
  Rendezvous place;
  place.source = variables.has("TORCHELASTIC_RUN_ID") ? Rendezvous::kTorchrun
                 : variables.has("MEGALITH_LAUNCHER") ? "megalith --nproc"
                                                      : "the environment";
  place.rank = variables.number("RANK");
  place.world_size = variables.number("WORLD_SIZE");
  const bool alone = place.world_size == 1;
  place.local_rank = variables.number("LOCAL_RANK", alone ? std::optional(0) : std::nullopt);
  place.local_world_size = variables.number("LOCAL_WORLD_SIZE", place.world_size);
  place.master_addr = variables.text("MASTER_ADDR", alone ? std::optional<std::string>("127.0.0.1") : std::nullopt);
  place.master_port = variables.number("MASTER_PORT", alone ? std::optional(0) : std::nullopt);
  // torchrun's agent and our launcher serve the store themselves; otherwise rank 0 does.
  const bool agent_serves =
      variables.text("TORCHELASTIC_USE_AGENT_STORE", "") == "True" || variables.has("MEGALITH_LAUNCHER");
  place.hosts_store = !agent_serves && place.rank == 0;
  place.restarts = variables.number("TORCHELASTIC_RESTART_COUNT", 0);
  check_place(variables, place, "RANK", "WORLD_SIZE");
  variables.throw_if_any(place.source);
  return place;
}

// Returns the tasks of this node. srun's description of the step is exact; what the job asked for (--ntasks-per-node)
// holds unless the step differs; with plain --ntasks only the lists say it. A list that does not add up to the tasks of
// the step describes the allocation instead.
int slurm_local_size(Variables& variables, int world_size) {
  const auto from_list = [&](const char* name) -> std::optional<int> {
    if (!variables.has(name)) return std::nullopt;
    const auto counts = slurm_task_counts(variables.text(name));
    if (!counts) {
      variables.refuse(
          fmt::format("{} is \"{}\"; it must list the tasks of each node, as in 8(x2),4", name, variables.text(name)));
      return 1;
    }
    if (std::accumulate(counts->begin(), counts->end(), int64_t{0}) != world_size) return std::nullopt;
    const int node = counts->size() == 1 ? 0 : variables.number("SLURM_NODEID");
    if (static_cast<size_t>(node) < counts->size()) return (*counts)[static_cast<size_t>(node)];
    variables.refuse(
        fmt::format("SLURM_NODEID is {} but {}=\"{}\" has {} nodes", node, name, variables.text(name), counts->size()));
    return 1;
  };
  if (const auto size = from_list("SLURM_STEP_TASKS_PER_NODE")) return *size;
  if (variables.has("SLURM_NTASKS_PER_NODE")) return variables.number("SLURM_NTASKS_PER_NODE");
  return from_list("SLURM_TASKS_PER_NODE").value_or(world_size);
}

// Slurm tells each task its numbers but no address: rank 0 is on the first node of the step's list.
Rendezvous from_slurm(Variables& variables) {
  Rendezvous place;
  place.source = "Slurm";
  place.rank = variables.number("SLURM_PROCID");
  place.world_size = variables.number("SLURM_NTASKS");
  place.local_rank = variables.number("SLURM_LOCALID");
  place.local_world_size = slurm_local_size(variables, place.world_size);
  if (variables.has("MASTER_ADDR")) {
    place.master_addr = variables.text("MASTER_ADDR");
  } else {
    const bool step = variables.has("SLURM_STEP_NODELIST");
    place.master_addr = first_slurm_host(variables.text(step ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST"));
  }
  // Every rank computes the same port; two jobs on one node rarely share one.
  place.master_port = variables.number("MASTER_PORT", kDefaultPort + variables.number("SLURM_JOB_ID", 0) % 10000);
  place.hosts_store = place.rank == 0;
  check_place(variables, place, "SLURM_PROCID", "SLURM_NTASKS");
  variables.throw_if_any("Slurm");
  return place;
}

// Open MPI tells neither address nor port, so a run on several nodes has to pass MASTER_ADDR.
Rendezvous from_open_mpi(Variables& variables) {
  Rendezvous place;
  place.source = "Open MPI";
  place.rank = variables.number("OMPI_COMM_WORLD_RANK");
  place.world_size = variables.number("OMPI_COMM_WORLD_SIZE");
  place.local_rank = variables.number("OMPI_COMM_WORLD_LOCAL_RANK");
  place.local_world_size = variables.number("OMPI_COMM_WORLD_LOCAL_SIZE", place.world_size);
  const bool one_node = place.local_world_size == place.world_size;
  place.master_addr = variables.text("MASTER_ADDR", one_node ? std::optional<std::string>("127.0.0.1") : std::nullopt);
  place.master_port = variables.number("MASTER_PORT", kDefaultPort);
  place.hosts_store = place.rank == 0;
  check_place(variables, place, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  variables.throw_if_any("Open MPI (mpirun -x MASTER_ADDR=… passes one on)");
  return place;
}

// Explains why there is no store: an unknown host, a port in use, or no answer.
[[noreturn]] void throw_no_store(const Rendezvous& place, std::chrono::milliseconds timeout,
                                 const std::string& reason) {
  const double seconds = std::chrono::duration<double>(timeout).count();
  const std::string where = fmt::format("{}:{}", place.master_addr, place.master_port);
  const auto way = route_to(place.master_addr, place.master_port);
  if (!way)
    throw CommError(
        fmt::format("rank {}: the host name \"{}\" (MASTER_ADDR) cannot be resolved. Set it to the name or"
                    " address of the machine of rank 0.",
                    place.rank, place.master_addr));
  const std::string route = fmt::format("{} (interface {})", way->address, way->interface);
  if (place.hosts_store)
    throw CommError(
        fmt::format("rank {}: cannot listen on port {} for the other ranks (own address {}): {}. Another program"
                    " may be using the port, or MASTER_ADDR is not this machine: set MASTER_PORT to a free port"
                    " and MASTER_ADDR to this machine on all ranks.",
                    place.rank, place.master_port, route, reason));
  throw CommError(fmt::format(
      "rank {}: no answer from the store at {} within {:g} s, going out from {}: {}. Check that rank 0 (or "
      "the launcher) runs"
      " there, that MASTER_ADDR and MASTER_PORT are equal on all ranks, and that no firewall blocks the port. Machines"
      " that start more slowly need a larger --store_connect_timeout.",
      place.rank, where, seconds, route, reason));
}

}  // namespace

// Takes the text before the first bracket and the first item inside it, plus what follows the bracket.
std::string first_slurm_host(const std::string& node_list) {
  const size_t end = node_list.find_first_of(",[");
  std::string host = node_list.substr(0, end);
  if (end == std::string::npos || node_list[end] == ',') return host;
  const size_t stop = node_list.find_first_of(",-]", end + 1);
  check<ConfigError>(stop != std::string::npos, "the Slurm node list \"{}\" has an unclosed bracket", node_list);
  host += node_list.substr(end + 1, stop - end - 1);
  const size_t close = node_list.find(']', stop);
  check<ConfigError>(close != std::string::npos, "the Slurm node list \"{}\" has an unclosed bracket", node_list);
  return host + node_list.substr(close + 1, node_list.find(',', close) - close - 1);
}

std::optional<std::vector<int>> slurm_task_counts(const std::string& text) {
  // "8(x2)": eight tasks on each of two nodes. Six digits bound the numbers before they are converted.
  static const std::regex entry(R"((\d{1,6})(?:\(x(\d{1,6})\))?)");
  constexpr size_t kMostNodes = 1 << 20;
  std::vector<int> counts;
  for (const std::string& word : split(trim(text), ',')) {
    std::smatch parts;
    if (!std::regex_match(word, parts, entry)) return std::nullopt;
    const size_t nodes = parts[2].matched ? std::stoul(parts[2]) : 1;
    if (nodes == 0 || nodes > kMostNodes - counts.size()) return std::nullopt;
    counts.insert(counts.end(), nodes, std::stoi(parts[1]));
  }
  return counts.empty() ? std::nullopt : std::optional(counts);
}

Rendezvous rendezvous_from_env(const EnvReader& read) {
  Variables variables(read);
  if (variables.has("RANK") || variables.has("WORLD_SIZE")) return from_torchrun(variables);
  // A shell inside an allocation also has SLURM_NTASKS; only a job step of several tasks is a launch.
  if (variables.has("SLURM_PROCID") && variables.has("SLURM_STEP_ID") && variables.number("SLURM_NTASKS", 1) > 1)
    return from_slurm(variables);
  if (variables.has("OMPI_COMM_WORLD_RANK")) return from_open_mpi(variables);
  Rendezvous alone;
  alone.source = "single process";
  return alone;
}

Rendezvous rendezvous_from_env() { return rendezvous_from_env(env_string); }

std::chrono::milliseconds default_connect_timeout(bool one_machine) {
  return one_machine ? std::chrono::seconds(60) : std::chrono::seconds(600);
}

// Clients wait for the listener themselves, since TCPStore's own retry would not say what the network answered.
c10::intrusive_ptr<c10d::Store> connect_store(const Rendezvous& place, std::chrono::milliseconds timeout) {
  if (!place.hosts_store) {
    const std::string problem = wait_for_listener(place.master_addr, place.master_port, timeout);
    if (!problem.empty()) throw_no_store(place, timeout, problem);
  }
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(place.master_port);
  options.isServer = place.hosts_store;
  // The server does not wait for its clients: ranks that never come are reported by the agreement or by an operation.
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    return c10::make_intrusive<LastingStore>(place.master_addr, place.master_port,
                                             c10::make_intrusive<c10d::TCPStore>(place.master_addr, options));
  } catch (const std::exception& error) {
    throw_no_store(place, timeout, first_line(error.what()));
  }
}

}  // namespace megalith::comm
