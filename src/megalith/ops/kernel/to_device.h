// Tensors on their way to a device.
#pragma once

#include <ATen/ATen.h>

namespace megalith::ops {

// x on `device`. From the host to CUDA through pinned memory, so that the caller goes on at once: a copy from ordinary
// memory waits for all that the stream has to do before it.
inline at::Tensor to_device(const at::Tensor& x, at::Device device) {
  if (!device.is_cuda() || !x.is_cpu()) return x.to(device);
  return x.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace megalith::ops
