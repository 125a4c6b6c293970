// PollingStore: waits for keys by asking repeatedly, so that no request blocks a connection that others also use.
//
// A wait of TCPStore holds its connection until the key exists. Two groups that connect at once over one connection
// could then block each other forever: rank 0 waits for rank 1's key of group a, so its own key of group b is stuck in
// the queue; rank 1 waits for that key, with its own key of group a stuck in its queue. Gloo's groups connect on their
// own threads; NCCL's connect one at a time and do not need this.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

namespace megalith::comm {

// Thread-safe if `shared` is. Waits ask every millisecond at first, then less often, up to every 50 ms.
class PollingStore : public c10d::Store {
 public:
  // `shared` is the connection that others use as well; its limit holds for waits here, too.
  explicit PollingStore(c10::intrusive_ptr<c10d::Store> shared)
      : c10d::Store(shared->getTimeout()), shared_(std::move(shared)) {}

  // Shares the connection, which is the purpose of this class.
  c10::intrusive_ptr<c10d::Store> clone() override { return c10::make_intrusive<PollingStore>(shared_); }

  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override { shared_->set(key, value); }
  using c10d::Store::compareSet;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override {
    return shared_->compareSet(key, expected, desired);
  }
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override { return shared_->add(key, value); }
  bool deleteKey(const std::string& key) override { return shared_->deleteKey(key); }
  bool check(const std::vector<std::string>& keys) override { return shared_->check(keys); }
  int64_t getNumKeys() override { return shared_->getNumKeys(); }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override { shared_->append(key, value); }
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) override {
    shared_->multiSet(keys, values);
  }
  bool hasExtendedApi() const override { return shared_->hasExtendedApi(); }

 private:
  const c10::intrusive_ptr<c10d::Store> shared_;
};

}  // namespace megalith::comm
