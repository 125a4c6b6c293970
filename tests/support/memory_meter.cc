#include "tests/support/memory_meter.h"

#include <algorithm>
#include <utility>

namespace megalith::testing {

struct MemoryMeter::Counter : c10::MemoryReportingInfoBase {
  explicit Counter(std::function<void(int64_t)> callback) : on_allocation(std::move(callback)) {}

  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    current += bytes;  // negative when memory is freed
    peak = std::max(peak, current);
    if (bytes > 0 && on_allocation) on_allocation(bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::function<void(int64_t)> on_allocation;
  int64_t current = 0, peak = 0;
};

MemoryMeter::MemoryMeter(std::function<void(int64_t bytes)> on_allocation)
    : counter_(std::make_shared<Counter>(std::move(on_allocation))),
      guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}

int64_t MemoryMeter::current() const { return counter_->current; }
int64_t MemoryMeter::peak() const { return counter_->peak; }
void MemoryMeter::reset_peak() const { counter_->peak = counter_->current; }

}  // namespace megalith::testing
