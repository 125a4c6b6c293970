// Only `get`, `multiGet` and `wait` can block in TCPStore; here they poll with `check`, which the store answers at
// once.
#include "megalith/comm/store/polling_store.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>

namespace megalith::comm {

using std::chrono::milliseconds;

// The key exists once wait() returns, so get() does not block the connection.
std::vector<uint8_t> PollingStore::get(const std::string& key) {
  wait({key}, timeout_);
  return shared_->get(key);
}

std::vector<std::vector<uint8_t>> PollingStore::multiGet(const std::vector<std::string>& keys) {
  wait(keys, timeout_);
  return shared_->multiGet(keys);
}

void PollingStore::wait(const std::vector<std::string>& keys, const milliseconds& timeout) {
  constexpr milliseconds kLongestPause{50};
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  for (milliseconds pause{1}; !shared_->check(keys); pause = std::min(2 * pause, kLongestPause)) {
    if (timeout != kNoTimeout && std::chrono::steady_clock::now() >= deadline)
      C10_THROW_ERROR(DistStoreError,
                      fmt::format("wait timeout after {} ms, keys: {}", timeout.count(), fmt::join(keys, ", ")));
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace megalith::comm
