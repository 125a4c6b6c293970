#include "megalith/run/interrupt_guard.h"

#include <csignal>
#include <utility>

namespace megalith::run {

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

}  // namespace megalith::run
