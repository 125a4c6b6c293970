// LastingStore: a connection to the store that survives brief network failures.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "megalith/base/error.h"

namespace megalith::comm {

// How long an unreachable store is tolerated: resets and silence of a management network pass, while the training
// network keeps working.
constexpr std::chrono::seconds kStorePatience{60};

// The process that served the store has ended: its machine responds, but nobody listens there.
class StoreEnded : public CommError {
 public:
  using CommError::CommError;
};

// A client of TCPStore that reconnects when its TCP connection has broken. A request that found it broken is repeated
// over the new one, except `append` and `add` of a nonzero value, which may already have taken effect: they throw, and
// the next request reconnects. One attempt to connect takes a few seconds at most. TCPStore does not acknowledge a
// `set`, so one that was lost with its connection would go unnoticed: here a `check` follows each.
//
// Throws what c10d throws (DistNetworkError when the store cannot be reached, DistStoreError when a wait times out),
// and StoreEnded when connections are refused: at once if by this machine, after ten seconds if by another one, where a
// firewall or a proxy may have answered.
//
// Thread-safe. Requests of several threads take turns, and one that waits (get, wait) holds the connection.
class LastingStore : public c10d::Store {
 public:
  // `first` is already connected to host:port; it is kept until the end, since it may also be the server.
  LastingStore(std::string host, int port, c10::intrusive_ptr<c10d::Store> first);
  // Connects; `timeout` limits requests that wait.
  LastingStore(std::string host, int port, std::chrono::milliseconds timeout);

  // Returns another connection with the same limit, already connected.
  c10::intrusive_ptr<c10d::Store> clone() override;

  using c10d::Store::set;
  void set(const std::string& key, const std::vector<uint8_t>& value) override;
  using c10d::Store::compareSet;
  std::vector<uint8_t> compareSet(const std::string& key, const std::vector<uint8_t>& expected,
                                  const std::vector<uint8_t>& desired) override;
  std::vector<uint8_t> get(const std::string& key) override;
  int64_t add(const std::string& key, int64_t value) override;
  bool deleteKey(const std::string& key) override;
  bool check(const std::vector<std::string>& keys) override;
  int64_t getNumKeys() override;
  void wait(const std::vector<std::string>& keys) override;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override;
  void setTimeout(const std::chrono::milliseconds& timeout) override;
  void append(const std::string& key, const std::vector<uint8_t>& value) override;
  std::vector<std::vector<uint8_t>> multiGet(const std::vector<std::string>& keys) override;
  void multiSet(const std::vector<std::string>& keys, const std::vector<std::vector<uint8_t>>& values) override;
  bool hasExtendedApi() const override { return true; }

 private:
  using Connection = c10::intrusive_ptr<c10d::Store>;

  // Returns the current connection, opened again if it has broken; drop() marks one as broken. ask() runs a request
  // over it, once more if it broke and `repeatable` says that this is safe.
  Connection connected();
  Connection connect_again();
  void drop(const Connection& broken);
  template <class Request>
  auto ask(bool repeatable, const Request& request);

  const std::string host_;
  const int port_;
  const Connection first_;
  std::mutex mutex_;
  Connection current_;                                                  // guarded by mutex_; null after it broke
  std::optional<std::chrono::steady_clock::time_point> refused_since_;  // guarded by mutex_
};

// Decides when a store that does not answer counts as gone. For one thread.
class StorePatience {
 public:
  // `limit` is the longest silence that is tolerated.
  explicit StorePatience(std::chrono::milliseconds limit = kStorePatience) : limit_(limit) {}

  // Reports that a request has succeeded, which ends the silence.
  void answered() { silent_since_.reset(); }
  // Reports that a request has failed with `error`. Returns true when the store is gone: its process has ended, or it
  // has been silent for the limit.
  bool is_gone_after(const std::exception& error);

 private:
  const std::chrono::milliseconds limit_;
  std::optional<std::chrono::steady_clock::time_point> silent_since_;
};

}  // namespace megalith::comm
