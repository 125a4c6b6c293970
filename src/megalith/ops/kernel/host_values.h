// Copies values between the host and a device without unnecessary waits.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>

namespace megalith::ops {

// A number being copied from a device to the host. The constructor queues the copy on the current stream; value() waits
// for that copy only, not for later work on the stream. Objects are cheap to copy.
class HostScalar {
 public:
  // Takes a tensor of one element, of any dtype and device.
  explicit HostScalar(const at::Tensor& scalar);
  // Returns the number; blocks until the copy has arrived.
  double value() const;

 private:
  at::Tensor host_;                     // fp64
  std::shared_ptr<c10::Event> copied_;  // nullptr if the number was on the host
};

// Returns x on `device`. Copies from the host to CUDA go through pinned memory, so that the caller continues at once: a
// copy from ordinary memory would wait for all earlier work on the stream.
at::Tensor to_device(const at::Tensor& x, at::Device device);

}  // namespace megalith::ops
