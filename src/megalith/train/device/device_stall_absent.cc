// Compiled without MEGALITH_CUDA.
#include <chrono>
#include <thread>

#include "megalith/train/device/device_stall.h"

namespace megalith::train {

void stall_device(c10::Device) {
  while (true) std::this_thread::sleep_for(std::chrono::hours(1));
}

}  // namespace megalith::train
