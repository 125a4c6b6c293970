// A network between two parties that a test can break: forwards TCP connections of one loopback port to another.
#pragma once

#include <atomic>
#include <list>
#include <mutex>
#include <thread>

namespace megalith::testing {

// Thread-safe.
class CuttableProxy {
 public:
  explicit CuttableProxy(int target_port);
  ~CuttableProxy();
  CuttableProxy(const CuttableProxy&) = delete;
  CuttableProxy& operator=(const CuttableProxy&) = delete;

  int port() const { return port_; }
  // Resets every connection. New ones are forwarded.
  void cut();
  // An outage: resets every connection, and new ones as soon as they are made, until it is over.
  void set_outage(bool on);
  // Nobody listens any more: new connections are refused.
  void close_listener();

 private:
  struct Pair {
    int client = -1, server = -1;
  };
  void run();
  void accept_one();
  void reset_all();  // requires mutex_

  const int target_port_;
  int port_ = 0;
  std::mutex mutex_;
  int listener_ = -1;      // guarded by mutex_
  std::list<Pair> pairs_;  // guarded by mutex_
  std::atomic<bool> outage_ = false, stop_ = false;
  std::thread thread_;
};

}  // namespace megalith::testing
