// The time of a device whose work is only enqueued by the host, such as a GPU.
//
//   host     mark A │ enqueue work │ mark B │ …              the host is far ahead, and never waits
//   device          └ … A passed ─── work ─── B passed       B - A is the time that the device took
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

namespace megalith {

// A place in a device's queue. Its time is known once the device has passed it. Thread-safe.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  // Returns when the device passed the mark, in nanoseconds of the host's clock; std::nullopt until it has, and forever
  // if the device has failed. Does not wait.
  virtual std::optional<int64_t> time_ns() noexcept = 0;
  // Waits until the device has passed the mark or failed.
  virtual void wait() noexcept = 0;
};

// Places marks, from any thread. Tests have one whose device they move by hand; comm/op/device_clock.h makes that of a
// GPU.
class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  // Marks the end of all work that the calling thread's current stream has been given so far. Returns nullptr where
  // nothing can be measured: the stream is being recorded into a graph, which runs later, or the device has failed.
  virtual std::shared_ptr<DeviceMark> mark() noexcept = 0;
  // Compares the clocks of device and host again, so that times of both can be shown side by side. Differences between
  // marks do not depend on it.
  virtual void align() noexcept = 0;
};

}  // namespace megalith
