// OpMarks: measures operations on a device, where the host only enqueues them.
//
//   rank's stream         compute ─┬─ compute ──────┐ stands still ┌─ compute
//   communicator's stream          └─ all_reduce ───┼──────────────┘
//                                  issued           wait
//
// The operation occupies its communicator from `issued`, or from the end of the operation before it, until its own end.
// The time for which the rank's stream stands still is communication that nothing hides.
#pragma once

#include <c10/core/Stream.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "megalith/base/trace.h"
#include "megalith/comm/op/op.h"

namespace megalith::comm {

// Thread-safe, one per rank. Everything does nothing unless the trace has a device clock.
class OpMarks {
 public:
  // See World::set_trace.
  void set_trace(TraceRecorder* trace);

  // To be called right before operations are started. Returns a mark on the rank's stream if a timeline is on.
  std::shared_ptr<DeviceMark> issue();
  // To be called right after: adds the operations to the timeline. `stream` is the one they run on; std::nullopt if the
  // host does the work, which OpRecorder adds. Texts of ops and `group` outlive the trace's spans.
  void started(const std::vector<Op>& ops, const char* group, std::shared_ptr<DeviceMark> issued,
               const std::optional<c10::Stream>& stream);

  // To be called before and after the rank's stream is made to wait for an operation.
  std::shared_ptr<DeviceMark> before_wait();
  void waited(const OpInfo& op, const char* group, std::shared_ptr<DeviceMark> before);

  // Returns the seconds for which the rank's stream has stood still, as far as the device has got. Does not wait.
  double waited_seconds();

 private:
  struct Wait {
    std::shared_ptr<DeviceMark> before, after;
  };
  void add_known_waits();  // requires mutex_

  std::atomic<TraceRecorder*> trace_ = nullptr;
  std::mutex mutex_;  // never taken by the watchdog: it is held while the device is asked
  // Guarded by mutex_.
  std::map<c10::StreamId, std::shared_ptr<DeviceMark>> newest_end_;  // by stream: the end of its last operation
  std::vector<Wait> waits_;                                          // not known yet
  int64_t waited_ns_ = 0;
};

}  // namespace megalith::comm
