// OpRecorder: a rank's current and past communication, for the watchdog and for error messages.
#pragma once

#include <array>
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

// The identity and members of a group.
struct GroupInfo {
  std::string id;  // equal on all members, unique among the groups of a run
  std::string name;
  std::vector<int> ranks;  // world ranks, by group rank
  int rank = 0;            // this rank's place
};

// The operations of one kind that a rank has started in a group.
struct OpTotal {
  std::string group;  // its name
  OpKind kind = OpKind::kBarrier;
  int64_t operations = 0;
  int64_t bytes = 0;  // OpInfo::bytes of all of them
  bool operator==(const OpTotal&) const = default;
};

// The last activity of a rank, as the others see it.
struct RankStatus {
  int rank = -1;
  double posted_at = 0;  // seconds since the epoch, the poster's clock
  std::string last;      // "in all_reduce 'loss' #12 of tp for 3.1 s", "finished barrier #2 of world 0.4 s ago"
  // Group id -> sequence number of the last collective begun there: shows who has arrived.
  std::map<std::string, uint64_t> begun;
  // Group id -> the newest collectives that this rank's host has started there, whether or not the device has reached
  // them.
  std::map<std::string, OpExcerpt> operations{};

  // The form in which it is posted to the store.
  std::string to_json() const;
  static RankStatus from_json(const std::string& text);
};

// Thread-safe, one per rank. begin and end cost a lock and a few stores: no formatting.
//
// On CUDA the host does not wait: an operation may still run on the device when the host no longer asks about it. Two
// marks per operation, which hold no tensors, tell where the device is: before the operation, in it, or past it (see
// StreamMarks). Operations of a group run in order, so checking the device starts with the oldest and stops at the
// first that is not done.
class OpRecorder {
 public:
  using Clock = std::chrono::steady_clock;

  // An operation that has begun and is not known to have ended.
  struct InFlight {
    const GroupInfo* group;  // lives as long as the World
    OpInfo op;
    Clock::time_point begun;
    bool started = false;  // passed to the backend
    std::weak_ptr<PendingOp> pending;
    std::shared_ptr<Completion> arrival;     // the device has reached it; nullptr where the host does the work
    std::shared_ptr<Completion> completion;  // the device has passed it; nullptr until the host has waited for it

    // Returns whether the device has got to it; always true where the host does the work.
    bool reached() const { return !arrival || arrival->done(); }
  };

  // Records the start of an operation and returns its record number. `group` must outlive the recorder: World keeps
  // every group it has created.
  uint64_t begin(const GroupInfo& group, const OpInfo& op);
  // Attaches the handle that abort() needs; called once the backend has started the operation.
  void started(uint64_t record, const std::shared_ptr<PendingOp>& pending);
  // Records the end of an operation that the host has waited for. A second call does nothing.
  void end(uint64_t record);
  // The host no longer waits for it, but it may be in flight: it counts as running until `completion` is done.
  void end_when_done(uint64_t record, std::shared_ptr<Completion> completion);

  // See World::set_trace.
  void set_trace(TraceRecorder* trace);

  // Returns the time since the operation began.
  std::chrono::milliseconds age(uint64_t record) const;
  // Returns the status to post. It first looks at what the device has finished.
  RankStatus status(int rank);
  std::vector<InFlight> in_flight();  // oldest first
  // Returns the groups that have had a collective.
  std::vector<const GroupInfo*> groups() const;
  // Return all that is kept of a group's collectives, and one of them (std::nullopt if it is no longer kept).
  OpExcerpt operations(const GroupInfo& group) const;
  std::optional<OpInfo> operation(const GroupInfo& group, uint64_t sequence) const;
  // Returns "12.3 s ago  all_reduce 'loss' #12 of tp: 0.2 ms", newest last; at most the last 64 operations.
  std::vector<std::string> recent() const;
  // Returns how many operations have begun, by group and kind, ordered by the names of groups.
  std::vector<OpTotal> totals() const;

 private:
  struct Finished {
    OpKind kind;
    const char* label;
    uint64_t sequence;
    const GroupInfo* group;
    Clock::time_point begun, ended;
  };

  struct Count {
    int64_t operations = 0, bytes = 0;
  };

  struct GroupRecord {
    std::array<Count, kOpKinds> counts{};  // by kind
    uint64_t begun = 0;                    // sequence number of the newest collective
    OpHistory history;
    std::deque<uint64_t> on_device;  // records with a completion, oldest first
  };

  // All require mutex_. finish() moves a record from running to finished; finish_done() does so for the leading records
  // of a group that the device has passed.
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
