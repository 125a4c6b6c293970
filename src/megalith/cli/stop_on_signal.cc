#include "megalith/cli/stop_on_signal.h"

#include "megalith/base/log.h"
#include "megalith/comm/rendezvous.h"

namespace megalith::cli {

StopOnSignal::StopOnSignal() : signals_(/*with_hangup=*/false) {
  thread_ = std::thread([this, speaks = comm::rendezvous_from_env().rank == 0] {
    if (!signals_.wait()) return;
    flag_.request();
    if (speaks) log_warning("finishing the step that runs, then saving; press Ctrl-C again to leave at once");
    if (const auto second = signals_.wait()) signals_.deliver(*second);
  });
}

StopOnSignal::~StopOnSignal() {
  signals_.cancel();
  thread_.join();
}

}  // namespace megalith::cli
