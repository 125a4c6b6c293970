// World: one rank's connection to all others. Makes groups; watches over them; ends the run cleanly.
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

class StartRecord;
class StoreLink;
struct RankState;

struct WorldOptions {
  // What moves the bytes: "gloo", "nccl", or empty for the device's own (NCCL on CUDA, Gloo on CPU).
  std::string backend;
  at::Device device = at::kCPU;
  // Limit of each operation (ddp_timeout).
  std::chrono::milliseconds timeout = std::chrono::seconds(1800);
  // Limit for reaching the store at the start (store_connect_timeout); std::nullopt means default_connect_timeout.
  std::optional<std::chrono::milliseconds> connect_timeout;
  // Compare operation, dtype and shape on all members before each collective (MEGALITH_COMM_DEBUG).
  bool debug = false;
  // Tuning of NCCL's communicators by group name.
  NcclSettings nccl;
  // Network interface for Gloo; empty: the one that reaches the store. NCCL's: pass_interface_to_nccl.
  std::string interface;
  // Called on the watchdog's thread when another rank has failed, or an operation is stuck, while this rank's own
  // thread does not notice (it computes, or waits for the GPU). Expected to end the process. Processes only.
  std::function<void(const std::string& reason)> on_stuck;
};

// The backend that `requested` (may be empty) and the device call for: "nccl" or "gloo". Names of other platforms'
// libraries (hccl, rccl, mpi, ucc, xccl, …) are known and refused with the reason; NCCL without CUDA likewise. Throws
// ConfigError.
std::string resolve_backend(const std::string& requested, bool on_cuda, bool built_with_nccl);
// Whether this build can use NCCL.
bool nccl_available();

// Not copyable; groups made from it must not be used after it is gone. One thread a rank.
class World {
 public:
  // Joins the other processes. Collective only in that all ranks must do it within `connect_timeout`.
  static std::unique_ptr<World> connect(Rendezvous place, const WorldOptions& options);
  // `size` ranks for `size` threads of this process; element r is for the thread of rank r.
  static std::vector<std::unique_ptr<World>> in_process(int size, const WorldOptions& options = {});

  // Leaves without waiting for the others. After a run that went well call close() first. The connections of groups
  // that nobody holds any more are closed; on_stuck is called when that takes more than kCloseLimit.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const;
  int size() const;
  const std::string& backend() const { return backend_; }  // "gloo", "nccl", "threads" or "none" (one rank)
  // With the restarts that all ranks agree on.
  const Rendezvous& place() const { return place_; }

  // All ranks.
  Group world();
  // The group with these world ranks (ascending, this rank among them). No communication: it connects at its first
  // operation. The same name and ranks give the same group. The same ranks under two names are two groups; they share
  // their connections (on NCCL a communicator: hundreds of megabytes of device memory, and time to make it) when `lane`
  // is the same, not empty text. Operations of one lane run one after the other: put groups into one lane that are not
  // meant to work at the same time, and that all their members use in the same order.
  Group group(const std::string& name, const std::vector<int>& ranks, const std::string& lane = "");
  static constexpr std::chrono::seconds kCloseLimit{30};
  // The lane of world(): what all ranks exchange between steps.
  static constexpr const char* kControlLane = "control";
  // How many sets of connections have been made so far.
  int connected_groups() const;

  // Another limit for the operations that are waited for from now on (at most the one that the world was made with:
  // transports have that). Each rank sets its own.
  void set_timeout(std::chrono::milliseconds timeout);

  // Tells all other ranks that this one (or `culprit`, which all of them name) has failed, so that they end soon and
  // say why.
  void report_failure(const std::string& reason, std::optional<int> culprit = std::nullopt);
  // Takes something for this rank alone, among all ranks of the run: the first that asks for `what` gets it. Returns
  // the name of the rank that holds it: `holder` (not empty), or what the earlier one gave as its own. No rank waits
  // for another. Ranks that are threads each get what they ask for.
  std::string claim(const std::string& what, const std::string& holder);

  // Waits until all ranks have called it (at most the operations' time limit), shuts the connections of all groups
  // down, and leaves. No operation may follow. When shutting down takes more than kCloseLimit, on_stuck is called.
  void close();

  // Has the operations of all groups recorded as spans of the lane kCommunication, each from its start until this rank
  // had waited for it. The recorder outlives the World, or is taken away with nullptr; its spans are taken before the
  // World goes.
  void set_trace(TraceRecorder* trace);

  // How long this rank's thread has waited for operations so far; on CUDA, where streams wait, next to nothing.
  double waited_seconds() const;

  // What the earlier starts of this job have left; null unless torchrun started it.
  StartRecord* record() const { return record_.get(); }

  // The last operations, newest last; for a post-mortem.
  std::vector<std::string> recent_operations() const;

 private:
  World(Rendezvous place, std::string backend, std::shared_ptr<RankState> state);
  // Lets go of the groups' connections; `in_order`: all ranks do so now, and shut them down first.
  void close_groups(bool in_order);

  Rendezvous place_;
  std::string backend_;
  std::shared_ptr<RankState> state_;
  std::map<std::string, std::shared_ptr<GroupState>> groups_;  // by id
  std::shared_ptr<StoreLink> link_;                            // only for processes
  std::shared_ptr<StartRecord> record_;
};

}  // namespace megalith::comm
