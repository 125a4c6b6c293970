// What stands behind a Group and what all groups of one rank share.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "megalith/comm/op/backend.h"
#include "megalith/comm/op/op_recorder.h"
#include "megalith/comm/op/status_board.h"

namespace megalith::comm {

struct GroupState;

// Compares an operation with what the other members are about to do; throws CommError showing both sides when they
// differ. False: the others did not say what they do within the time limit.
using OpComparer = std::function<bool(const GroupState&, const Op&)>;

// Shared by all groups of one rank. Constant after construction but for what synchronises itself.
struct RankState {
  int rank = 0;
  int size = 1;
  std::atomic<std::chrono::milliseconds> timeout{};  // set_timeout changes it while the watchdog looks
  at::Device device = at::kCPU;                      // where the tensors of all operations live
  std::function<std::shared_ptr<Backend>(const GroupState&)> connect;
  OpComparer compare;  // debug mode only; may be empty
  std::shared_ptr<StatusBoard> board;
  OpRecorder recorder;
  std::atomic<int64_t> waited_ns{0};  // the rank's thread, for operations

  // Once the run is over, every operation fails with this reason instead of waiting for its limit.
  void end_run(const std::string& reason);
  void throw_if_over();
  // The message for an operation past its limit, with what the board knows. `missing`: group ranks that the backend
  // knows to be absent; empty: the board tells.
  std::string timeout_message(const GroupInfo& group, const OpInfo& op, const std::vector<int>& missing = {}) const;
  // For the watchdog: the message for an operation that has been running for longer than `limit`, if there is one.
  std::optional<std::string> overdue_message(std::chrono::milliseconds limit);
  // For an operation that has just been started: end_run may have come before it was known to the recorder.
  void abort_if_over(PendingOp& pending);

 private:
  std::mutex mutex_;
  std::string over_;  // guarded by mutex_; empty while all is well
};

// One group of one rank. Used by that rank's thread only.
struct GroupState : GroupInfo {
  std::shared_ptr<RankState> owner;

  std::string lane;                  // groups of the same ranks in one lane share a backend; empty: one of its own
  std::shared_ptr<Backend> backend;  // made at the first operation
  std::set<std::pair<OpKind, int>> opened;  // directions and peers that open_transfers has connected
  uint64_t collectives = 0;
  std::map<std::pair<OpKind, int>, uint64_t> transfers;  // by direction and peer

  uint64_t next_sequence(const Op& op);
};

// The operation has not ended within its limit: tells all ranks, ends the run, and throws CommError. `missing`: see
// RankState::timeout_message.
[[noreturn]] void throw_timeout(const GroupState& group, const OpInfo& op, const std::vector<int>& missing = {});
// The operation has failed inside the transport. Most often that is the echo of another rank's end, and then that one's
// words are shown (PeerFailure), else `reason` (CommError).
[[noreturn]] void throw_failed(const GroupState& group, const OpInfo& op, const std::string& reason);

}  // namespace megalith::comm
