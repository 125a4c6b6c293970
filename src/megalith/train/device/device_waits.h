// For tests: a search for waits, places where the host stands still until the device has caught up and the device then
// idles until the host has given it work again; and a device that is stuck in a kernel.
#pragma once

#include <c10/core/Device.h>

namespace megalith::train {

// While it lives, and if it is `on`, libtorch throws where it would let the host wait for the device (a value that is
// read, a copy from ordinary memory), in every thread of the process. Does nothing in a build without CUDA.
class ForbidDeviceWaits {
 public:
  explicit ForbidDeviceWaits(bool on);
  ~ForbidDeviceWaits();
  ForbidDeviceWaits(const ForbidDeviceWaits&) = delete;
  ForbidDeviceWaits& operator=(const ForbidDeviceWaits&) = delete;

 private:
  [[maybe_unused]] const bool on_;
};

// Gives the device a kernel that does not end within a day, on the current stream, and returns: whatever waits for the
// device waits with it. On the CPU, which has no queue, the calling thread is stuck here.
void stall_device(c10::Device device);

}  // namespace megalith::train
