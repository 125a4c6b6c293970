#include "megalith/run/rehearsal/tensor_memory.h"

#include <c10/core/CachingDeviceAllocator.h>

#include "megalith/run/out_of_memory.h"

namespace megalith::run {

TensorMemory::TensorMemory(c10::Device device)
    : device_(device), host_(device.is_cpu() ? std::make_shared<ops::BlockCounter>() : nullptr) {
  if (host_) guard_.emplace(c10::DebugInfoKind::PROFILER_STATE, host_);
  reset_peak();
}

TensorMemory::~TensorMemory() = default;

int64_t TensorMemory::peak() const { return host_ ? host_->peak : peak_bytes(device_); }

void TensorMemory::reset_peak() const {
  if (host_)
    host_->peak = host_->current;
  else
    c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
}

}  // namespace megalith::run
