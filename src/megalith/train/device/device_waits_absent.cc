// In place of device_waits_cuda.cc in a build without CUDA.
#include "megalith/train/device/device_waits.h"

namespace megalith::train {

ForbidDeviceWaits::ForbidDeviceWaits(bool on) : on_(on) {}
ForbidDeviceWaits::~ForbidDeviceWaits() = default;

}  // namespace megalith::train
