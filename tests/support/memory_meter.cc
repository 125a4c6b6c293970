#include "tests/support/memory_meter.h"

#include <utility>

#include "megalith/ops/kernel/block_counter.h"

namespace megalith::testing {

struct MemoryMeter::Counter : ops::BlockCounter {
  explicit Counter(std::function<void(int64_t)> callback) : on_allocation(std::move(callback)) {}

  void reportMemoryUsage(void* block, int64_t bytes, size_t total, size_t reserved, c10::Device device) override {
    BlockCounter::reportMemoryUsage(block, bytes, total, reserved, device);
    if (device.is_cpu() && bytes > 0 && on_allocation) on_allocation(bytes);
  }

  std::function<void(int64_t)> on_allocation;
};

MemoryMeter::MemoryMeter(std::function<void(int64_t bytes)> on_allocation)
    : counter_(std::make_shared<Counter>(std::move(on_allocation))),
      guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}

int64_t MemoryMeter::current() const { return counter_->current; }
int64_t MemoryMeter::peak() const { return counter_->peak; }
void MemoryMeter::reset_peak() const { counter_->peak = counter_->current; }

}  // namespace megalith::testing
