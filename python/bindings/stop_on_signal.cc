#include "stop_on_signal.h"

#include <unistd.h>

#include <atomic>
#include <string_view>

namespace megalith::python {

namespace {

// State of the handler, which may run on any thread and call only what is safe in a handler.
std::atomic<train::StopFlag*> running{nullptr};
std::atomic<int> first_signal{0};

void on_signal(int signal) {
  train::StopFlag* const flag = running.load();
  if (flag == nullptr) return;
  int none = 0;
  if (first_signal.compare_exchange_strong(none, signal)) {
    constexpr std::string_view kNote = "\nstopping after this step, with a checkpoint; once more to end at once\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kNote.data(), kNote.size());
    flag->request();
    return;
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

StopOnSignal::StopOnSignal(train::StopFlag& flag) {
  first_signal = 0;
  running = &flag;
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &old_interrupt_);
  sigaction(SIGTERM, &action, &old_terminate_);
}

StopOnSignal::~StopOnSignal() {
  sigaction(SIGINT, &old_interrupt_, nullptr);
  sigaction(SIGTERM, &old_terminate_, nullptr);
  running = nullptr;
}

int StopOnSignal::received() const { return first_signal; }

}  // namespace megalith::python
