// BlockCounter: the bytes of tensors on the CPU, as libtorch reports them to the thread that it is installed on.
#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <cstdint>
#include <unordered_map>

namespace megalith::ops {

// Install it with c10::DebugInfoGuard(c10::DebugInfoKind::PROFILER_STATE, counter). It counts blocks that the thread
// allocates from then on; a block that another thread frees counts until its address comes again.
//
// Blocks are looked up by address. c10's own table keeps the address of a counted block that was freed where nobody
// counted, and reports the end of whatever lies there next with the old size.
struct BlockCounter : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void* block, int64_t bytes, size_t, size_t, c10::Device device) override {
    if (!device.is_cpu()) return;
    forget(block);
    if (bytes <= 0) return;  // freed
    blocks_.emplace(block, bytes);
    current += bytes;
    peak = std::max(peak, current);
  }
  bool memoryProfilingEnabled() const override { return true; }

  int64_t current = 0, peak = 0;  // bytes now, and the most since `peak` was last set

 private:
  void forget(void* block) {
    const auto known = blocks_.find(block);
    if (known == blocks_.end()) return;
    current -= known->second;
    blocks_.erase(known);
  }

  std::unordered_map<void*, int64_t> blocks_;  // bytes by address
};

}  // namespace megalith::ops
