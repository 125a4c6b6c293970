// Values on their way between the host and a device, without a wait that nobody needs.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>

namespace megalith::ops {

// A number on its way from a device to the host. The copy is started at once, in the order of the stream; value() waits
// for it alone, not for what the stream was given afterwards. Copies are cheap.
class HostScalar {
 public:
  explicit HostScalar(const at::Tensor& scalar);
  double value() const;

 private:
  at::Tensor host_;                     // fp64
  std::shared_ptr<c10::Event> copied_;  // nullptr: it was on the host
};

// x on `device`. From the host to CUDA through pinned memory, so that the caller goes on at once: a copy from ordinary
// memory waits for all that the stream has to do before it.
at::Tensor to_device(const at::Tensor& x, at::Device device);

}  // namespace megalith::ops
