// StreamMarks: tells how far a device has come by reading memory instead of asking the driver.
//
// Launching a kernel blocks inside the driver while the device's queue is full. A thread that queries an event at that
// time blocks too, and a stuck device is exactly when the watchdog must not block. So the device itself writes a number
// into host memory when it passes a mark, and other threads just read it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "megalith/comm/op/backend.h"

namespace megalith::comm {

// Thread-safe.
class StreamMarks {
 public:
  virtual ~StreamMarks() = default;
  // Places a mark after everything that the device's current stream has been given so far: done once the device has
  // passed it. Querying it is a memory read. A device that has failed never gets there.
  // While the stream is recorded, the mark is done at once.
  virtual std::shared_ptr<Completion> mark() = 0;
  // Whether the device's current stream is being recorded into a CUDA graph. The device runs nothing meanwhile, and
  // each replay would write the marks again, into words that belong to others by then.
  virtual bool recording() const = 0;
};

// Throws InternalError in a build without CUDA.
std::shared_ptr<StreamMarks> make_stream_marks(at::Device device);

}  // namespace megalith::comm
