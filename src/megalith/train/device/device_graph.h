// DeviceGraph: device work that is recorded once and started by one call of the host from then on (a CUDA graph); and
// the stream that it takes.
#pragma once

#include <c10/core/Stream.h>

#include <functional>
#include <memory>

namespace megalith::train {

// One thread. Tensors that the recorded work reads or writes stay where they are and outlive the graph; what it
// allocates is the graph's, and what is to be read afterwards of that must be held by the caller.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Records what `work` gives to the current stream, in other threads too (autograd's). Nothing of it runs. Throws what
  // `work` throws, and what the device says of work that cannot be recorded; the graph is of no use then.
  virtual void record(const std::function<void()>& work) = 0;
  // Everything that was recorded, behind what the current stream has to do.
  virtual void replay() = 0;
};

// Graphs that share memory with one another run one at a time. `other` may be nullptr. Throws InternalError in a build
// without CUDA.
std::unique_ptr<DeviceGraph> make_device_graph(const DeviceGraph* other);
using MakeDeviceGraph = std::function<std::unique_ptr<DeviceGraph>(const DeviceGraph* other)>;

// While it lives, this thread's work goes to a stream of its own: the default stream of a device cannot be recorded.
// `device` is the current one of the thread, as DeviceGraph records that one's stream; InternalError otherwise.
// Everything that was started before is over when it begins, and everything that it was given is over when it ends.
// Whoever lets another thread, which uses the default stream, read results in between waits for the device first.
class OwnStream {
 public:
  explicit OwnStream(c10::Device device);
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  const c10::Device device_;
  c10::Stream before_;
};

}  // namespace megalith::train
