#include "megalith/run/stop_on_signal.h"

#include <csignal>

#include "megalith/base/log.h"
#include "megalith/comm/store/rendezvous.h"

namespace megalith::run {

StopOnSignal::StopOnSignal() : signals_({SIGUSR1}) {
  thread_ = std::thread([this, speaks = comm::rendezvous_from_env().rank == 0] {
    int asked = 0;
    while (const auto signal = signals_.wait()) {
      if (*signal != SIGUSR1 && ++asked == 2) signals_.deliver(*signal);
      if (!flag_.requested() && speaks)
        log_warning("finishing the step that runs, then saving; press Ctrl-C again to leave at once");
      flag_.request();
    }
  });
}

StopOnSignal::~StopOnSignal() {
  signals_.cancel();
  thread_.join();
}

}  // namespace megalith::run
