// Compiled only with MEGALITH_CUDA.
#include <c10/cuda/CUDAFunctions.h>

#include "megalith/train/device/device_waits.h"

namespace megalith::train {

ForbidDeviceWaits::ForbidDeviceWaits(bool on) : on_(on) {
  if (on_) c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_ERROR);
}

ForbidDeviceWaits::~ForbidDeviceWaits() {
  if (on_) c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_DISABLED);
}

}  // namespace megalith::train
