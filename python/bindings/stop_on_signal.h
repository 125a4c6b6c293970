// Ctrl-C while a run trains.
#pragma once

#include <csignal>

#include "megalith/train/stop_flag.h"

namespace megalith::python {

// While it lives, the first SIGINT or SIGTERM asks the run to stop after its step, and a second one ends the process.
// Python's own handlers are back afterwards. One at a time, on the main thread: others have no say in signals.
class StopOnSignal {
 public:
  // `flag` outlives it.
  explicit StopOnSignal(train::StopFlag& flag);
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

  // Returns the signal that has arrived; 0 for none.
  int received() const;

 private:
  struct sigaction old_interrupt_ {
  }, old_terminate_{};
};

}  // namespace megalith::python
