// Written against c10's device-independent guard, so that the same source serves builds with and without CUDA.
#include <ATen/DeviceAccelerator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "megalith/comm/op/current_device.h"
#include "megalith/train/device/device_graph.h"

namespace megalith::train {

namespace {

// Waits first: work on the old stream would otherwise run concurrently with that on the new one.
c10::Stream enter_own_stream(c10::Device device) {
  comm::check_device_current(device, "a recorded graph");
  at::accelerator::synchronizeDevice(device.index());
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.exchangeStream(guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false));
}

}  // namespace

OwnStream::OwnStream(c10::Device device) : device_(device), before_(enter_own_stream(device)) {}

OwnStream::~OwnStream() {
  try {
    at::accelerator::synchronizeDevice(device_.index());
  } catch (const std::exception&) {
    // A device that has failed has already been reported by the code that used it; destructors must not throw.
  }
  const c10::impl::VirtualGuardImpl guard(device_.type());
  guard.exchangeStream(before_);
}

}  // namespace megalith::train
