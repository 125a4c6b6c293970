// Replaces device_clock_cuda.cc in a build without CUDA.
#include "megalith/base/error.h"
#include "megalith/comm/op/device_clock.h"

namespace megalith::comm {

std::shared_ptr<DeviceClock> make_device_clock(c10::Device device) {
  check(device.is_cpu(), "the clock of {} in a build without CUDA", device.str());
  return nullptr;
}

}  // namespace megalith::comm
