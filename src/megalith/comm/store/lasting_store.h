// LastingStore: a connection to the store that survives the network's hiccups.
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

// How long a store that cannot be reached is hoped for: resets and silence of a management network pass, while the
// training network goes on.
constexpr std::chrono::seconds kStorePatience{60};

// The process that served the store has ended: its machine answers, and nobody listens there.
class StoreEnded : public CommError {
 public:
  using CommError::CommError;
};

// A client of TCPStore that connects again when its TCP connection has broken. A request that found it broken is made
// once more over the new one; only `add` of something other than 0 and `append` are not, since the first may have
// counted: they throw, and the next request connects. One attempt to connect takes some seconds at most. TCPStore does
// not answer a `set`, so one that was lost with its connection would go unnoticed: here a `check` follows each.
//
// Throws what c10d throws (DistNetworkError when the store cannot be reached, DistStoreError when a wait runs out of
// time), and StoreEnded when connections are refused: at once by this machine, after ten seconds by another one, where
// a firewall or a proxy may have answered.
//
// Thread-safe. Requests of several threads take turns, and one that waits (get, wait) holds the connection.
class LastingStore : public c10d::Store {
 public:
  // `first`: connected to host:port already; kept until the end, since it may be the server, too.
  LastingStore(std::string host, int port, c10::intrusive_ptr<c10d::Store> first);
  // Connects; `timeout` is the limit of requests that wait.
  LastingStore(std::string host, int port, std::chrono::milliseconds timeout);

  // Another connection, made before this returns, with the same limit.
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

  Connection connected();
  Connection connect_again();
  void drop(const Connection& broken);
  template <class Request>
  auto ask(bool repeatable, const Request& request);

  const std::string host_;
  const int port_;
  const Connection first_;
  std::mutex mutex_;
  Connection current_;                                                  // guarded by mutex_; empty when it has broken
  std::optional<std::chrono::steady_clock::time_point> refused_since_;  // guarded by mutex_
};

// Decides when a store that does not answer counts as gone. One thread.
class StorePatience {
 public:
  explicit StorePatience(std::chrono::milliseconds limit = kStorePatience) : limit_(limit) {}

  void answered() { silent_since_.reset(); }
  // A request has failed with `error`. True when the store is gone: its process has ended, or nothing has been heard of
  // it for the limit.
  bool is_gone_after(const std::exception& error);

 private:
  const std::chrono::milliseconds limit_;
  std::optional<std::chrono::steady_clock::time_point> silent_since_;
};

}  // namespace megalith::comm
