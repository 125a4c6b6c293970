#include "tests/support/memory_meter.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace megalith::testing {

struct MemoryMeter::Counter : c10::MemoryReportingInfoBase {
  explicit Counter(std::function<void(int64_t)> callback) : on_allocation(std::move(callback)) {}

  // Looks blocks up by address. c10's own table keeps the address of a metered block that an unmetered thread has
  // freed, so it reports the end of whatever lies there next with the old size.
  void reportMemoryUsage(void* block, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    forget(block);
    if (bytes <= 0) return;
    blocks.emplace(block, bytes);
    current += bytes;
    peak = std::max(peak, current);
    if (on_allocation) on_allocation(bytes);
  }

  // Ends the count of a block: it was freed, here or (when its address comes again) on another thread.
  void forget(void* block) {
    const auto known = blocks.find(block);
    if (known == blocks.end()) return;
    current -= known->second;
    blocks.erase(known);
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::function<void(int64_t)> on_allocation;
  std::unordered_map<void*, int64_t> blocks;  // bytes by address
  int64_t current = 0, peak = 0;
};

MemoryMeter::MemoryMeter(std::function<void(int64_t bytes)> on_allocation)
    : counter_(std::make_shared<Counter>(std::move(on_allocation))),
      guard_(c10::DebugInfoKind::PROFILER_STATE, counter_) {}

int64_t MemoryMeter::current() const { return counter_->current; }
int64_t MemoryMeter::peak() const { return counter_->peak; }
void MemoryMeter::reset_peak() const { counter_->peak = counter_->current; }

}  // namespace megalith::testing
