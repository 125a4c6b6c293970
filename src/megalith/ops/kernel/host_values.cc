// Transfers between host and device that do not make the host wait until the value is used.
#include "megalith/ops/kernel/host_values.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace megalith::ops {

HostScalar::HostScalar(const at::Tensor& scalar) {
  const at::Tensor wide = scalar.detach().to(at::kDouble);
  if (wide.is_cpu()) {
    host_ = wide;
    return;
  }
  // Only a copy to pinned memory is asynchronous; the event tells when it has arrived.
  host_ = at::empty({}, at::TensorOptions(at::kDouble).pinned_memory(true));
  host_.copy_(wide, /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl device(wide.device().type());
  copied_ = std::make_shared<c10::Event>(wide.device().type());
  copied_->record(device.getStream(wide.device()));
}

double HostScalar::value() const {
  if (copied_) copied_->synchronize();
  return host_.item<double>();
}

at::Tensor to_device(const at::Tensor& x, at::Device device) {
  if (!device.is_cuda() || !x.is_cpu()) return x.to(device);
  return x.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace megalith::ops
