// World: one rank's connection to all others. Creates groups, watches over them, and ends the run cleanly.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/comm/backend/nccl_settings.h"
#include "megalith/comm/group.h"
#include "megalith/comm/op/op_recorder.h"
#include "megalith/comm/store/rendezvous.h"

namespace megalith {
class TraceRecorder;
}

namespace megalith::comm {

class StandIns;
class StartRecord;
class StoreLink;
struct RankState;

// How a rank communicates, and its time limits.
struct WorldOptions {
  // The transport: "gloo", "nccl", or empty for the device's default (NCCL on CUDA, Gloo on CPU).
  std::string backend;
  at::Device device = at::kCPU;
  // Time limit of each operation (ddp_timeout).
  std::chrono::milliseconds timeout = std::chrono::seconds(1800);
  // Time limit for reaching the store at the start (store_connect_timeout); std::nullopt means default_connect_timeout.
  std::optional<std::chrono::milliseconds> connect_timeout;
  // Compare operation, dtype and shape on all members before each collective (MEGALITH_COMM_DEBUG).
  bool debug = false;
  // Tuning of NCCL's communicators by group name.
  NcclSettings nccl;
  // Network interface for Gloo; empty means the one that reaches the store. For NCCL see pass_interface_to_nccl.
  std::string interface;
  // Called on the watchdog's thread when another rank has failed, or an operation is stuck, and this rank's own thread
  // does not notice (it computes, or waits for the GPU). Expected to end the process. Only for ranks that are
  // processes.
  std::function<void(const std::string& reason)> on_stuck;
};

// Returns the backend for `requested` (may be empty) and the device: "nccl" or "gloo". Throws ConfigError with the
// reason for NCCL without CUDA and for libraries of other platforms (hccl, rccl, mpi, ucc, xccl, …).
std::string resolve_backend(const std::string& requested, bool on_cuda, bool built_with_nccl);
// Returns whether this build can use NCCL.
bool nccl_available();

// Not copyable; its groups must not be used after its destruction. One thread per rank.
class World {
 public:
  // Joins the other processes; all ranks must do so within `connect_timeout`.
  static std::unique_ptr<World> connect(Rendezvous place, const WorldOptions& options);
  // Creates `size` ranks for `size` threads of this process; element r is for the thread of rank r.
  static std::vector<std::unique_ptr<World>> in_process(int size, const WorldOptions& options = {});
  // Creates one rank of `size`, the others of which do not exist: `others` stand in for them (backend/stand_in.h).
  static std::unique_ptr<World> rehearse(int rank, int size, const WorldOptions& options,
                                         std::shared_ptr<StandIns> others);

  // Leaves without waiting for the others; after a successful run, call close() first. Closes the connections of groups
  // that nobody holds any more; calls on_stuck if that takes more than kCloseLimit.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const;
  int size() const;  // number of ranks
  // "gloo", "nccl", "threads", "stand-ins" (rehearse) or "none" (one rank).
  const std::string& backend() const { return backend_; }
  // Returns the place in the run, with the number of restarts that all ranks agree on.
  const Rendezvous& place() const { return place_; }

  // Returns the group of all ranks.
  Group world();
  // Returns the group with these world ranks (ascending, including this rank). Does not communicate: the group connects
  // at its first operation. The same name and ranks give the same group. The same ranks under two names are two groups;
  // they share their connections (on NCCL a communicator: hundreds of megabytes of device memory, and time to create
  // it) if they have the same non-empty `lane`. Operations of one lane run one after the other, so a lane is for groups
  // that are not meant to work at the same time and that all their members use in the same order.
  Group group(const std::string& name, const std::vector<int>& ranks, const std::string& lane = "");
  static constexpr std::chrono::seconds kCloseLimit{30};
  // The lane of world(): the exchanges of all ranks between steps.
  static constexpr const char* kControlLane = "control";
  // Returns how many sets of connections have been opened so far.
  int connected_groups() const;

  // Changes the limit of operations that are waited for from now on, up to the limit that the world was created with,
  // which the transports keep. Each rank sets its own.
  void set_timeout(std::chrono::milliseconds timeout);

  // Tells all other ranks that this one (or `culprit`) has failed, so that they end soon and report the reason.
  void report_failure(const std::string& reason, std::optional<int> culprit = std::nullopt);
  // Claims something for this rank alone, among all ranks of the run: the first that asks for `what` gets it. Returns
  // the name of the rank that holds it: `holder` (not empty), or the one that an earlier caller gave. Never waits for
  // another rank. Ranks that are threads always get what they ask for.
  std::string claim(const std::string& what, const std::string& holder);

  // Waits until every rank has connected: at most the time limit of operations, after which CommError names those that
  // are missing. `tell` hears who is missing (ascending) whenever that has changed. Throws PeerFailure if another rank
  // fails meanwhile. One rank is enough to call it; the first operation of all ranks would wait as well, but could not
  // say for whom.
  void wait_for_all(const std::function<void(const std::vector<int>& missing)>& tell);

  // Waits until all ranks have called it (at most the time limit of operations), shuts down the connections of all
  // groups, and leaves. No operation may follow. Calls on_stuck if the shutdown takes more than kCloseLimit.
  void close();

  // Records the operations of all groups as spans of the lane kCommunication: on a device with a clock, the time for
  // which each occupies its communicator's stream; elsewhere from its start until this rank has waited for it. The
  // recorder must outlive the World or be removed with nullptr; take its spans before the World is
  // destroyed.
  void set_trace(TraceRecorder* trace);

  // Returns how long this rank has waited for operations so far. Where streams wait (NCCL), that is the time for which
  // the rank's stream stood still, as far as the device has got; it is measured while the trace has a device clock, and
  // otherwise almost nothing. Never waits for the device.
  double waited_seconds() const;

  // Returns the operations that this rank has started so far, by group and kind. Groups of one rank have none.
  std::vector<OpTotal> operation_totals() const;

  // Returns the record that earlier starts of this job left; nullptr unless torchrun started it.
  StartRecord* record() const { return record_.get(); }

  // Returns the last operations, newest last, for a post-mortem.
  std::vector<std::string> recent_operations() const;

 private:
  World(Rendezvous place, std::string backend, std::shared_ptr<RankState> state);
  // Releases the groups' connections; with `in_order`, all ranks do so now, and shut them down first.
  void close_groups(bool in_order);

  Rendezvous place_;
  std::string backend_;
  std::shared_ptr<RankState> state_;
  std::map<std::string, std::shared_ptr<GroupState>> groups_;  // by id
  std::shared_ptr<StoreLink> link_;                            // nullptr for ranks that are threads
  std::shared_ptr<StartRecord> record_;
};

}  // namespace megalith::comm
