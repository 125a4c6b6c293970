// Tools for tests: find places where the host waits for the device, after which the device idles until the host has
// submitted new work; and hang a device in a kernel.
#pragma once

#include <c10/core/Device.h>

namespace megalith::train {

// While it lives, and if it is `on`, libtorch throws wherever the host would wait for the device (to read a value, or
// to copy from pageable memory), in every thread of the process. Does nothing in a build without CUDA. For
// MEGALITH_FORBID_DEVICE_WAITS in train_step.cc.
class ForbidDeviceWaits {
 public:
  // Not nested: the destructor allows waits again, whatever held before.
  explicit ForbidDeviceWaits(bool on);
  ~ForbidDeviceWaits();
  ForbidDeviceWaits(const ForbidDeviceWaits&) = delete;
  ForbidDeviceWaits& operator=(const ForbidDeviceWaits&) = delete;

 private:
  [[maybe_unused]] const bool on_;
};

// Submits a kernel that runs for more than a day to the current stream and returns: everything that waits for the
// device hangs. On the CPU, which has no queue, the calling thread hangs here.
void stall_device(c10::Device device);

}  // namespace megalith::train
