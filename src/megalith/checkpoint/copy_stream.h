// CopyStream: copies from a device to the host that run beside its computation.
//
//   copies.begin();                     // the caller: copies come after what its stream has been given so far
//   std::thread([&] {
//     copies.enter();                   // this thread's copies go to a stream of their own
//     host.copy_(tensor, true); …       // pinned memory: the host only queues them
//     copies.leave();                   // the last one is queued
//     copies.wait();                    // the host memory holds the data
//   });
//   copies.hold_back();                 // the caller, after leave(): its stream waits, so that tensors may now be
//   changed
//
// Neither the caller nor the computation that it queues before hold_back() waits for the copies. On the CPU, where
// copies are done when they return, every function does nothing.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <optional>

namespace megalith::checkpoint {

// One save's copies. begin() and hold_back() belong to the caller's thread, the others to the thread that copies. The
// caller orders the calls as above.
class CopyStream {
 public:
  explicit CopyStream(c10::Device device) : device_(device) {}

  void begin();
  // Also makes the device current on this thread, which keeps the stream for the rest of its life.
  void enter();
  void leave();
  void wait() const;
  void hold_back() const;

 private:
  bool has_streams() const { return !device_.is_cpu(); }

  const c10::Device device_;
  std::optional<c10::Stream> stream_;       // from begin() on
  std::optional<c10::Event> begun_, done_;  // from begin() and leave() on
};

}  // namespace megalith::checkpoint
