// CopyStream: copies from a device to the host that overlap with its computation.
//
//   copies.begin();                 // caller: copies run after the work queued on its stream so far
//   std::thread([&] {
//     copies.enter();               // this thread's copies go to a separate stream
//     host.copy_(tensor, true); …   // to pinned memory: the host only queues them
//     copies.leave();               // the last one is queued
//     copies.wait();                // the host memory holds the data
//   });
//   copies.hold_back();             // caller, after leave(): its stream waits, so later work may change the tensors
//
// Neither the caller nor the computation that it queues before hold_back() waits for the copies. On the CPU, where
// copies are complete when they return, every function does nothing.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>

namespace megalith::checkpoint {

// The copies of one save. The caller's thread calls begin() and hold_back(), the copying thread all others. The caller
// must order the calls as above.
class CopyStream {
 public:
  explicit CopyStream(c10::Device device) : device_(device) {}

  void begin();
  // Also makes the device current on this thread. The thread keeps the stream until it ends.
  void enter();
  void leave();
  void wait() const;
  void hold_back() const;

 private:
  bool has_streams() const { return !device_.is_cpu(); }

  const c10::Device device_;
  std::optional<c10::Stream> stream_;       // set by begin()
  std::optional<c10::Event> begun_, done_;  // set by begin() and leave()
};

}  // namespace megalith::checkpoint
