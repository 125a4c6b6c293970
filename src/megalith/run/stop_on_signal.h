// StopOnSignal: SIGINT, SIGTERM and SIGUSR1 ask a run to end in order; a second SIGINT or SIGTERM ends the process at
// once.
#pragma once

#include <thread>

#include "megalith/run/ending_signals.h"
#include "megalith/train/stop_flag.h"

namespace megalith::run {

// Made before other threads of the rank are (so before it connects): they inherit that these signals are not theirs.
// The first signal raises the flag and, on rank 0, says so on stderr; the next SIGINT or SIGTERM ends the process as it
// would have without us. SIGUSR1 is Slurm's warning (--signal=USR1@120), which SIGTERM follows at the time limit: it
// does not count as the first of two.
class StopOnSignal {
 public:
  StopOnSignal();
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

  const train::StopFlag& flag() const { return flag_; }

 private:
  train::StopFlag flag_;
  EndingSignals signals_;
  std::thread thread_;
};

}  // namespace megalith::run
