// Handles the signals that end a process. InterruptGuard cleans up before the process ends; StopOnSignal lets a run
// stop gracefully at SIGINT, SIGTERM or SIGUSR1, and ends the process at once where that would save nothing: before the
// first step, or at a second SIGINT or SIGTERM.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <thread>

#include <sys/signalfd.h>

#include "megalith/comm/store/heartbeat.h"
#include "megalith/train/stop_flag.h"

namespace megalith::run {

// Reads signals from a descriptor instead of a handler. While it lives, SIGINT, SIGTERM and those in `also` are blocked
// in the calling thread and in the threads that it starts.
class EndingSignals {
 public:
  // Blocks the signals and starts to collect them. Throws InternalError if the system has no descriptors left.
  explicit EndingSignals(std::initializer_list<int> also);
  ~EndingSignals();
  EndingSignals(const EndingSignals&) = delete;
  EndingSignals& operator=(const EndingSignals&) = delete;

  // Waits for the next signal; returns std::nullopt after cancel(). Called by one thread.
  std::optional<int> wait();
  // Makes wait() return. May be called by any thread.
  void cancel();
  // Ends the process as `signal` would have without us.
  [[noreturn]] void deliver(int signal) const;

 private:
  sigset_t set_;
  int signals_ = -1;  // signalfd
  int cancel_ = -1;   // eventfd
};

// While it lives, SIGINT, SIGTERM and SIGHUP call `clean_up` on a thread of its own and then end the process as usual.
// Create it before other threads, so that they inherit the blocked signals.
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

// Create it before other threads of the rank (so before it connects), so that they inherit the blocked signals. The
// first signal raises the flag and, on rank 0, logs a warning; the next SIGINT or SIGTERM ends the process as usual. So
// does the first one before the first step, wherever the rank is: connecting, tokenizing, loading. SIGUSR1 is Slurm's
// warning (--signal=USR1@120), which SIGTERM follows at the time limit: it does not count as the first of two, and lets
// a run reach its first step.
class StopOnSignal {
 public:
  // `slot` shows what the rank is doing; it outlives this object.
  explicit StopOnSignal(const comm::HeartbeatSlot& slot);
  ~StopOnSignal();
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

  const train::StopFlag& flag() const { return flag_; }  // raised by the first signal

 private:
  void react(int signal, bool speaks);

  const comm::HeartbeatSlot& slot_;
  train::StopFlag flag_;
  int asked_ = 0;  // SIGINT and SIGTERM so far; used by the thread alone
  EndingSignals signals_;
  std::thread thread_;
};

}  // namespace megalith::run
