#include "megalith/cli/interrupt_guard.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>

#include "megalith/base/error.h"

namespace megalith::cli {

namespace {

sigset_t ending_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, number);
  return set;
}

}  // namespace

InterruptGuard::InterruptGuard(std::function<void()> clean_up) : clean_up_(std::move(clean_up)) {
  const sigset_t set = ending_signals();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  signals_ = ::signalfd(-1, &set, SFD_CLOEXEC);
  end_ = ::eventfd(0, EFD_CLOEXEC);
  check(signals_ >= 0 && end_ >= 0, "signals cannot be watched");
  thread_ = std::thread([this] { watch(); });
}

InterruptGuard::~InterruptGuard() {
  ::eventfd_write(end_, 1);
  thread_.join();
  ::close(signals_);
  ::close(end_);
  const sigset_t set = ending_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

void InterruptGuard::watch() {
  pollfd waiting[] = {{.fd = signals_, .events = POLLIN, .revents = 0}, {.fd = end_, .events = POLLIN, .revents = 0}};
  while (::poll(waiting, 2, -1) < 0) {
  }
  if (waiting[1].revents != 0) return;
  signalfd_siginfo info{};
  if (::read(signals_, &info, sizeof info) != sizeof info) return;
  clean_up_();
  // As if nobody had been in between.
  const int number = static_cast<int>(info.ssi_signo);
  std::signal(number, SIG_DFL);
  const sigset_t set = ending_signals();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  std::raise(number);
}

}  // namespace megalith::cli
