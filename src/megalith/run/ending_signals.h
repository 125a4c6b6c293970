// The signals that ask a process to end, taken from their handlers: read from a descriptor instead.
#pragma once

#include <initializer_list>
#include <optional>

#include <sys/signalfd.h>

namespace megalith::run {

// While it lives, SIGINT, SIGTERM and those in `also` are blocked in the calling thread and in those that it makes.
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

}  // namespace megalith::run
