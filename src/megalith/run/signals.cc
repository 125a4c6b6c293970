// Signals are blocked and read from a signalfd by a thread of their own, so the reaction is ordinary code: it may
// lock, log and allocate, none of which a signal handler may do. An eventfd beside it wakes the thread when its owner
// goes away.
#include "megalith/run/signals.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <utility>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/comm/store/rendezvous.h"

namespace megalith::run {

EndingSignals::EndingSignals(std::initializer_list<int> also) {
  sigemptyset(&set_);
  for (const int number : {SIGINT, SIGTERM}) sigaddset(&set_, number);
  for (const int number : also) sigaddset(&set_, number);
  // A blocked signal stays pending until the descriptor is read. Threads that start later inherit the mask.
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  signals_ = ::signalfd(-1, &set_, SFD_CLOEXEC);
  cancel_ = ::eventfd(0, EFD_CLOEXEC);
  check(signals_ >= 0 && cancel_ >= 0, "signals cannot be watched");
}

EndingSignals::~EndingSignals() {
  ::close(signals_);
  ::close(cancel_);
  pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
}

std::optional<int> EndingSignals::wait() {
  pollfd waiting[] = {{.fd = signals_, .events = POLLIN, .revents = 0},
                      {.fd = cancel_, .events = POLLIN, .revents = 0}};
  // An interrupted poll is tried again.
  while (::poll(waiting, 2, -1) < 0) {
  }
  // Cancelling wins over a signal that arrives at the same time.
  if (waiting[1].revents != 0) return std::nullopt;
  signalfd_siginfo info{};
  if (::read(signals_, &info, sizeof info) != sizeof info) return std::nullopt;
  return static_cast<int>(info.ssi_signo);
}

void EndingSignals::cancel() { ::eventfd_write(cancel_, 1); }

// Restoring the default action first makes the exit status that of the signal, which launchers look at.
void EndingSignals::deliver(int signal) const {
  std::signal(signal, SIG_DFL);
  pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
  std::raise(signal);
  std::abort();  // never reached: the default action of these signals ends the process
}

InterruptGuard::InterruptGuard(std::function<void()> clean_up) : clean_up_(std::move(clean_up)), signals_({SIGHUP}) {
  thread_ = std::thread([this] {
    const auto signal = signals_.wait();
    if (!signal) return;
    clean_up_();
    signals_.deliver(*signal);
  });
}

InterruptGuard::~InterruptGuard() {
  signals_.cancel();
  thread_.join();
}

namespace {

// Says how the run ends after a request to stop. It is checked in each step, so whatever else is being done is
// finished, and then a step.
const char* until_the_end(const comm::HeartbeatSlot& slot) {
  if (!comm::has_begun(slot)) return "the run ends after its first step";
  switch (static_cast<comm::Section>(slot.section.load())) {
    case comm::Section::kEvaluation:
      return "finishing the evaluation and the step after it, then saving";
    case comm::Section::kCheckpointing:
      return "finishing the save that is running, then ending";
    case comm::Section::kOutside:
      return "finishing one more step, then saving";
    default:
      return "finishing the current step, then saving";
  }
}

}  // namespace

StopOnSignal::StopOnSignal(const comm::HeartbeatSlot& slot) : slot_(slot), signals_({SIGUSR1}) {
  thread_ = std::thread([this, speaks = comm::rendezvous_from_env().rank == 0] {
    while (const auto signal = signals_.wait()) react(*signal, speaks);
  });
}

// SIGUSR1 is a warning and never counts as the second request.
void StopOnSignal::react(int signal, bool speaks) {
  const bool ends = signal != SIGUSR1;
  if (ends && ++asked_ == 2) signals_.deliver(signal);
  if (ends && !comm::has_begun(slot_)) {
    // Our launcher says so itself, for all ranks.
    if (speaks && !env_flag("MEGALITH_LAUNCHER"))
      log_warning("ended by a signal before the first step; there was nothing to save");
    signals_.deliver(signal);
  }
  if (!flag_.requested() && speaks) log_warning("{}; press Ctrl-C again to leave at once", until_the_end(slot_));
  flag_.request();
}

StopOnSignal::~StopOnSignal() {
  signals_.cancel();
  thread_.join();
}

}  // namespace megalith::run
