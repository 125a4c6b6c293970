// The state of a Group, and the state that all groups of one rank share.
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
#include "megalith/comm/op/op_marks.h"
#include "megalith/comm/op/op_recorder.h"
#include "megalith/comm/op/status_board.h"

namespace megalith::comm {

struct GroupState;

// Compares an operation with those that the other members are about to start; throws CommError showing both sides when
// they differ. Returns false if the others did not post theirs within the time limit.
using OpComparer = std::function<bool(const GroupState&, const Op&)>;

// Shared by all groups of one rank. Constant after construction, except for members that synchronize themselves.
struct RankState {
  int rank = 0;
  int size = 1;
  std::atomic<std::chrono::milliseconds> timeout{};  // set_timeout writes it while the watchdog reads
  at::Device device = at::kCPU;                      // device of the tensors of all operations
  // Opens the connections of a group, at its first operation and on the rank's own thread. World::connect sets it.
  std::function<std::shared_ptr<Backend>(const GroupState&)> connect;
  OpComparer compare;  // debug mode only; may be empty
  // The other ranks' status and failures; nullptr for a world of one rank.
  std::shared_ptr<StatusBoard> board;
  OpRecorder recorder;
  std::atomic<int64_t> waited_ns{0};  // time that the rank's thread has waited for operations
  OpMarks marks;                      // measures operations that streams wait for

  // Ends the run: from now on every operation fails with this reason instead of waiting for its limit.
  void end_run(const std::string& reason);
  // Throws PeerFailure if the run has ended.
  void throw_if_over();
  // Returns the message for an operation past its limit, with the board's knowledge. `missing` lists the group ranks
  // that the backend knows to be absent; if empty, the board decides.
  std::string timeout_message(const GroupInfo& group, const OpInfo& op, const std::vector<int>& missing = {}) const;
  // For the watchdog: returns the message for an operation that has been running longer than `limit`, if there is one.
  std::optional<std::string> overdue_message(std::chrono::milliseconds limit);
  // Aborts an operation that has just been started if end_run came before the recorder knew about it.
  void abort_if_over(PendingOp& pending);

 private:
  std::mutex mutex_;
  std::string over_;  // the reason; guarded by mutex_; empty while the run continues
};

// One group of one rank. Used by that rank's thread only.
struct GroupState : GroupInfo {
  std::shared_ptr<RankState> owner;

  std::string lane;                         // groups of the same ranks in one lane share a backend; empty means its own
  std::shared_ptr<Backend> backend;         // made at the first operation
  std::set<std::pair<OpKind, int>> opened;  // directions and peers that open_transfers has connected
  uint64_t collectives = 0;                 // started so far
  std::map<std::pair<OpKind, int>, uint64_t> transfers;  // started so far, by direction and peer

  // Numbers an operation: see Op::sequence.
  uint64_t next_sequence(const Op& op);
};

// For an operation that has not finished within its limit: tells all ranks, ends the run, and throws CommError.
// `missing`: see RankState::timeout_message.
[[noreturn]] void throw_timeout(const GroupState& group, const OpInfo& op, const std::vector<int>& missing = {});
// For an operation that failed inside the transport. Usually another rank has ended, and then its message is thrown
// (PeerFailure); otherwise `reason` is (CommError).
[[noreturn]] void throw_failed(const GroupState& group, const OpInfo& op, const std::string& reason);

}  // namespace megalith::comm
