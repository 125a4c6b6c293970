#include "megalith/run/rehearsal/tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>

#include "megalith/run/out_of_memory.h"

namespace megalith::run {

// libtorch reports every allocation (and, with negative bytes, every release) on the thread that makes it.
struct TensorMemory::HostCounter : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    current += bytes;
    peak = std::max(peak, current);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t current = 0, peak = 0;
};

TensorMemory::TensorMemory(c10::Device device)
    : device_(device), host_(device.is_cpu() ? std::make_shared<HostCounter>() : nullptr) {
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
