// Compiled only with MEGALITH_CUDA.
#include <ATen/cuda/Sleep.h>

#include <chrono>
#include <cstdint>
#include <thread>

#include "megalith/train/device/device_stall.h"

namespace megalith::train {

void stall_device(c10::Device device) {
  constexpr int64_t kCyclesOfADay = int64_t{86400} * 3'000'000'000;  // at 3 GHz, more than any GPU has
  if (device.is_cuda()) return at::cuda::sleep(kCyclesOfADay);
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace megalith::train
