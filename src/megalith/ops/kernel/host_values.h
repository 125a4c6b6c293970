// Copies values between the host and a device without unnecessary waits.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <cstdint>
#include <memory>

namespace megalith::ops {

// A small tensor being copied from a device to the host. The constructor queues the copy on the current stream; value()
// waits for that copy only, not for later work on the stream. Objects are cheap to copy.
//
// libtorch's observers (profilers, tests) see value() as the function kWaitForDevice, whose only input is the number of
// the copy. Copies arrive in the order of their numbers, so a wait for one of them serves all before it. The same calls
// are made on the CPU, where nothing has to be waited for: a test without a GPU can count the waits of a step.
inline constexpr const char* kWaitForDevice = "megalith::wait_for_device";
class HostTensor {
 public:
  // Takes a tensor of any dtype and device.
  explicit HostTensor(const at::Tensor& tensor);
  // Returns the copy, contiguous, in the host's memory; blocks until it has arrived.
  const at::Tensor& value() const;

 private:
  at::Tensor host_;
  std::shared_ptr<c10::Event> copied_;  // nullptr if the tensor was on the host
  uint64_t number_ = 0;                 // among all copies of the process, in the order in which they were queued
};

// The same for one number, which may have any dtype.
class HostScalar {
 public:
  explicit HostScalar(const at::Tensor& scalar);
  double value() const;

 private:
  HostTensor copy_;  // fp64
};

// Returns x on `device`. Copies from the host to CUDA go through pinned memory, so that the caller continues at once: a
// copy from ordinary memory would wait for all earlier work on the stream.
at::Tensor to_device(const at::Tensor& x, at::Device device);

}  // namespace megalith::ops
