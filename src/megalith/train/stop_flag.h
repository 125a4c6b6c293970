// StopFlag: a request to end training soon, from a signal handler or another thread.
#pragma once

#include <atomic>

namespace megalith::train {

// Outlives the trainers that read it. A request on one rank is enough: the trainer asks all ranks in each step, so that
// all of them end after the same one.
class StopFlag {
 public:
  void request() { requested_.store(true, std::memory_order_relaxed); }  // safe in a signal handler
  bool requested() const { return requested_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> requested_{false};
  static_assert(std::atomic<bool>::is_always_lock_free);
};

}  // namespace megalith::train
