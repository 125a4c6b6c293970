// TensorMemory: the bytes of a rank's tensors, exactly, on the CPU as on a GPU.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "megalith/ops/kernel/block_counter.h"

namespace megalith::run {

// Counts what is allocated while it lives: on a GPU by the allocator, on the CPU by this thread (which also runs
// backward). A profiler cannot be active at the same time.
class TensorMemory {
 public:
  explicit TensorMemory(c10::Device device);
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;

  int64_t peak() const;     // the most bytes at any moment since the last reset_peak
  void reset_peak() const;  // starts again from what is allocated now

 private:
  const c10::Device device_;
  const std::shared_ptr<ops::BlockCounter> host_;  // nullptr on a GPU
  std::optional<c10::DebugInfoGuard> guard_;       // passes the thread's allocations to host_
};

}  // namespace megalith::run
