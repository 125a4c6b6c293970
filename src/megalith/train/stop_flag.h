// StopFlag: lets a signal handler or another thread request a graceful stop.
//
//   StopFlag stop;                                        // a handler calls stop.request()
//   Trainer(models, settings, {.stop = &stop}).train();   // saves and returns after the current step
#pragma once

#include <atomic>

namespace megalith::train {

// Outlives the trainers that read it. A request on one rank is enough: in each step the trainer asks all ranks, so that
// all of them end after the same step.
class StopFlag {
 public:
  void request() { requested_.store(true, std::memory_order_relaxed); }  // safe in a signal handler
  // Read by the trainer once per step, and summed over all ranks.
  bool requested() const { return requested_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> requested_{false};
  static_assert(std::atomic<bool>::is_always_lock_free);
};

}  // namespace megalith::train
