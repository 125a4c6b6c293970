// StreamMarks: how far a device has come, read from memory rather than asked of the driver.
//
// The launch of a kernel waits, inside of the driver, while the device's queue is full. A thread that asks about an
// event at that time waits too, and a device that is stuck is exactly when the watchdog must not wait. So the device
// itself writes a number into the host's memory when it comes past a mark, and whoever wants to know reads it.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "megalith/comm/op/backend.h"

namespace megalith::comm {

// Thread-safe.
class StreamMarks {
 public:
  virtual ~StreamMarks() = default;
  // A mark behind everything that the device's current stream has been given so far: done once the device has come
  // past it. Asking takes a read of memory. A device that has failed never gets there.
  virtual std::shared_ptr<Completion> mark() = 0;
};

// Throws InternalError in a build without CUDA.
std::shared_ptr<StreamMarks> make_stream_marks(at::Device device);

}  // namespace megalith::comm
