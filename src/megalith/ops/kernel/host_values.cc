// Transfers between host and device that do not make the host wait until the value is used.
#include "megalith/ops/kernel/host_values.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <array>
#include <atomic>

namespace megalith::ops {

namespace {

// Numbered over all threads, because autograd's threads queue copies that a rank's own thread reads.
std::atomic<uint64_t> copies_queued{0};

}  // namespace

HostTensor::HostTensor(const at::Tensor& tensor) : number_(++copies_queued) {
  const at::Tensor values = tensor.detach().contiguous();
  if (values.is_cpu()) {
    host_ = values;
    return;
  }
  // Only a copy to pinned memory is asynchronous; the event tells when it has arrived.
  host_ = at::empty(values.sizes(), values.options().device(at::kCPU).pinned_memory(true));
  host_.copy_(values, /*non_blocking=*/true);
  const c10::impl::VirtualGuardImpl device(values.device().type());
  copied_ = std::make_shared<c10::Event>(values.device().type());
  copied_->record(device.getStream(values.device()));
}

const at::Tensor& HostTensor::value() const {
  const std::array<c10::IValue, 1> number{static_cast<int64_t>(number_)};
  at::RecordFunction observed(at::RecordScope::USER_SCOPE);  // until the end of the wait
  if (observed.isActive()) observed.before(kWaitForDevice, c10::ArrayRef<const c10::IValue>(number.data(), 1));
  if (copied_) copied_->synchronize();
  return host_;
}

HostScalar::HostScalar(const at::Tensor& scalar) : copy_(scalar.detach().to(at::kDouble)) {}

double HostScalar::value() const { return *copy_.value().const_data_ptr<double>(); }

at::Tensor to_device(const at::Tensor& x, at::Device device) {
  if (x.device() == device) return x;
  if (!device.is_cuda() || !x.is_cpu()) return x.to(device);
  return x.pin_memory().to(device, /*non_blocking=*/true);
}

}  // namespace megalith::ops
