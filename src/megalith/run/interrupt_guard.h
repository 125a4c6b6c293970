// InterruptGuard: something is put in order before a signal ends the process.
#pragma once

#include <functional>
#include <thread>

#include "megalith/run/ending_signals.h"

namespace megalith::run {

// While it lives, SIGINT, SIGTERM and SIGHUP call `clean_up`, on a thread of its own, and then end the process as they
// would have. Made before other threads are: they inherit that these signals are not theirs.
class InterruptGuard {
 public:
  explicit InterruptGuard(std::function<void()> clean_up);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  std::function<void()> clean_up_;
  EndingSignals signals_;
  std::thread thread_;
};

}  // namespace megalith::run
