// DeviceGraph: device work that is recorded once and then started by a single call from the host (a CUDA graph), and
// OwnStream, the stream that recording needs.
#pragma once

#include <c10/core/Stream.h>

#include <functional>
#include <memory>

namespace megalith::train {

// One thread. Tensors that the recorded work reads or writes must stay where they are and outlive the graph. Memory
// that the work allocates belongs to the graph; the caller must hold the tensors that it wants to read afterwards.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // Records what `work` submits to the current stream, including work submitted by other threads (autograd's). Nothing
  // runs. Throws what `work` throws, and the device's error for work that cannot be recorded; the graph is then
  // unusable. Work that draws random numbers runs in parallel::RecordedDraws::record().
  virtual void record(const std::function<void()>& work) = 0;
  // Submits everything that was recorded to the current stream.
  virtual void replay() = 0;
};

// Makes an empty graph that shares memory with `other`, if that is not nullptr; graphs that share memory must run one
// at a time. Throws InternalError in a build without CUDA.
std::unique_ptr<DeviceGraph> make_device_graph(const DeviceGraph* other);
using MakeDeviceGraph = std::function<std::unique_ptr<DeviceGraph>(const DeviceGraph* other)>;

// While it lives, this thread submits its work to a separate stream, because a device's default stream cannot be
// recorded. `device` must be the thread's current device, since DeviceGraph records that one's stream; throws
// InternalError otherwise. The constructor waits for all earlier work, the destructor for all work of the stream.
// Before another thread, which uses the default stream, may read results in between, the caller must wait for the
// device.
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
