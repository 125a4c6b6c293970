// OpRecorder: what a rank's communication is doing and has done, for the watchdog and for error messages.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/comm/op/backend.h"
#include "megalith/comm/op/op.h"
#include "megalith/comm/op/op_history.h"

namespace megalith::comm {

// Which ranks a group has and how it is called.
struct GroupInfo {
  std::string id;  // equal on all members, unique among the groups of a run
  std::string name;
  std::vector<int> ranks;  // world ranks, by group rank
  int rank = 0;            // this rank's place
};

// What one rank was last doing, as the others get to see it.
struct RankStatus {
  int rank = -1;
  double posted_at = 0;  // seconds since the epoch, the poster's clock
  std::string last;      // "in all_reduce 'loss' #12 of tp for 3.1 s", "finished barrier #2 of world 0.4 s ago"
  // Group id -> sequence number of the last collective begun there: tells who has arrived.
  std::map<std::string, uint64_t> begun;
  // Group id -> the newest collectives that this rank's host has started there, whether the device has come to them or
  // not.
  std::map<std::string, OpExcerpt> operations{};

  std::string to_json() const;
  static RankStatus from_json(const std::string& text);
};

// Thread-safe, one per rank. begin and end cost a lock and a few stores: no formatting.
//
// On CUDA the host waits for nothing: an operation that nobody asks about any more may still run on the device. Two
// marks per operation, and no tensors, tell where the device is: before the operation, in it, or past it (see
// StreamMarks). Operations of a group run in order, so a look at the device starts with the oldest and stops at the
// first that is not done.
class OpRecorder {
 public:
  using Clock = std::chrono::steady_clock;

  struct InFlight {
    const GroupInfo* group;  // lives as long as the World
    OpInfo op;
    Clock::time_point begun;
    bool started = false;  // the backend has it
    std::weak_ptr<PendingOp> pending;
    std::shared_ptr<Completion> arrival;     // the device has come to it; null where the host does the work
    std::shared_ptr<Completion> completion;  // the device has passed it; null while the host has not waited for it

    bool reached() const { return !arrival || arrival->done(); }
  };

  // `group` outlives the recorder: World keeps every group it has made.
  uint64_t begin(const GroupInfo& group, const OpInfo& op);
  // Attaches what abort() needs; called once the backend has started the operation.
  void started(uint64_t record, const std::shared_ptr<PendingOp>& pending);
  void end(uint64_t record);
  // The host no longer waits for it, but it may still be in flight: it counts as running until `completion` is done.
  void end_when_done(uint64_t record, std::shared_ptr<Completion> completion);

  // See World::set_trace.
  void set_trace(TraceRecorder* trace);

  std::chrono::milliseconds age(uint64_t record) const;
  RankStatus status(int rank);
  std::vector<InFlight> in_flight();  // oldest first
  // The groups that have had a collective.
  std::vector<const GroupInfo*> groups() const;
  // All that is kept of the collectives of a group; of one of them, nothing when it is not kept any more.
  OpExcerpt operations(const GroupInfo& group) const;
  std::optional<OpInfo> operation(const GroupInfo& group, uint64_t sequence) const;
  // "12.3 s ago  all_reduce 'loss' #12 of tp: 0.2 ms", newest last; at most the last 64 operations.
  std::vector<std::string> recent() const;

 private:
  struct Finished {
    OpKind kind;
    const char* label;
    uint64_t sequence;
    const GroupInfo* group;
    Clock::time_point begun, ended;
  };

  struct GroupRecord {
    uint64_t begun = 0;  // sequence number of the newest collective
    OpHistory history;
    std::deque<uint64_t> on_device;  // records with a completion, oldest first
  };

  // All require mutex_.
  void add_to_trace(const InFlight& what) const;
  void finish(std::map<uint64_t, InFlight>::iterator running);
  void finish_done(std::deque<uint64_t>& on_device);
  void finish_all_done();
  void note_who_is_behind(RankStatus& status) const;
  std::string last_words() const;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  uint64_t next_record_ = 1;
  TraceRecorder* trace_ = nullptr;
  std::map<uint64_t, InFlight> running_;  // by record, oldest first
  std::map<const GroupInfo*, GroupRecord> groups_;
  std::deque<Finished> finished_;
};

}  // namespace megalith::comm
