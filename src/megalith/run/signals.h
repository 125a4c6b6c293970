// The signals that ask a process to end. InterruptGuard puts something in order before the process ends; StopOnSignal
// lets a run end in order: SIGINT, SIGTERM and SIGUSR1 ask for it, a second SIGINT or SIGTERM ends the process at once.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <thread>

#include <sys/signalfd.h>

#include "megalith/train/stop_flag.h"

namespace megalith::run {

// Takes the signals from their handlers and reads them from a descriptor instead. While it lives, SIGINT, SIGTERM and
// those in `also` are blocked in the calling thread and in those that it makes.
class EndingSignals {
 public:
  explicit EndingSignals(std::initializer_list<int> also);
  ~EndingSignals();
  EndingSignals(const EndingSignals&) = delete;
  EndingSignals& operator=(const EndingSignals&) = delete;

  // The next signal, or nothing after cancel(). One thread.
  std::optional<int> wait();
  // Makes wait() return; any thread.
  void cancel();
  // Ends the process as `signal` would have without us.
  [[noreturn]] void deliver(int signal) const;

 private:
  sigset_t set_;
  int signals_ = -1;  // signalfd
  int cancel_ = -1;   // eventfd
};

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
