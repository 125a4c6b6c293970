// Compiled only with MEGALITH_CUDA.
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAFunctions.h>

#include <chrono>
#include <cstdint>
#include <thread>

#include "megalith/train/device/device_waits.h"

namespace megalith::train {

ForbidDeviceWaits::ForbidDeviceWaits(bool on) : on_(on) {
  if (on_) c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
}

ForbidDeviceWaits::~ForbidDeviceWaits() {
  if (on_) c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
}

void stall_device(c10::Device device) {
  constexpr int64_t kCyclesOfADay = int64_t{86400} * 3'000'000'000;  // at 3 GHz, faster than any GPU
  if (device.is_cuda()) return at::cuda::sleep(kCyclesOfADay);
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace megalith::train
