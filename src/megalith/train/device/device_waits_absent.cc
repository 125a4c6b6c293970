// Replaces device_waits_cuda.cc in a build without CUDA.
#include <chrono>
#include <thread>

#include "megalith/train/device/device_waits.h"

namespace megalith::train {

ForbidDeviceWaits::ForbidDeviceWaits(bool on) : on_(on) {}
ForbidDeviceWaits::~ForbidDeviceWaits() = default;

void stall_device(c10::Device) {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace megalith::train
