// MemoryMeter: the bytes of tensors that one thread holds on the CPU, and what a test wants to know of when they are
// allocated. Seen through c10's memory reporting: exact, and not blurred by what an allocator keeps.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <functional>
#include <memory>

namespace megalith::testing {

// Counts on the thread that made it, from then on and while it lives. (Backward on CPU runs in the calling thread.)
// A tensor allocated before and freed meanwhile does not count.
class MemoryMeter {
 public:
  // `on_allocation` is called on that thread with the size of every new block, before it is used.
  explicit MemoryMeter(std::function<void(int64_t bytes)> on_allocation = {});

  int64_t current() const;  // bytes allocated and not freed
  int64_t peak() const;     // the largest current() so far
  void reset_peak() const;

 private:
  struct Counter;
  std::shared_ptr<Counter> counter_;
  c10::DebugInfoGuard guard_;
};

}  // namespace megalith::testing
