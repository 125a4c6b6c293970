// StopOnSignal: SIGINT and SIGTERM ask a run to end in order; a second one ends the process at once.
#pragma once

#include <thread>

#include "megalith/cli/ending_signals.h"
#include "megalith/train/stop_flag.h"

namespace megalith::cli {

// Made before other threads of the rank are (so before it connects): they inherit that these signals are not theirs.
// The first signal raises the flag and, on rank 0, says so on stderr; the next one ends the process as it would have
// without us.
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

}  // namespace megalith::cli
