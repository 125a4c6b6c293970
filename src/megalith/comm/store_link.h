// StoreLink: what a process does through the store beside its groups: posts its status, hears of failures, compares
// operations in debug mode, and runs the watchdog.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "megalith/comm/group_internal.h"
#include "megalith/comm/status_board.h"

namespace megalith::comm {

// The failure of a run, in the store for all ranks and launchers to see. The first report wins.
void report_failure_in(c10d::Store& store, const Failure& failure);
std::optional<Failure> failure_in(c10d::Store& store);
// What a rank waits for in an operation, as it last posted ("all_reduce 'loss' #12 of tp for 3.1 s"); empty: for
// nobody, or it has not posted anything.
std::string waits_in(c10d::Store& store, int rank);

// The board is thread-safe. The watchdog runs from watch() to stop().
class StoreLink : public StatusBoard {
 public:
  StoreLink(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size);
  ~StoreLink() override;

  std::map<int, RankStatus> read(const std::vector<int>& ranks) override;
  void report_failure(const Failure& failure) override;
  std::optional<Failure> failure(std::chrono::milliseconds patience) override;

  // A connection for one group, with its own key space.
  c10::intrusive_ptr<c10d::Store> store_for(const std::string& group_id);
  // Debug mode; see OpComparer.
  bool compare(const GroupState& group, const Op& op);

  // Starts the watchdog of this rank. Every beat it posts the rank's status, looks for failures and for operations past
  // their limit. A failure ends the rank's operations; when the rank's thread has still not stopped the watchdog after
  // some seconds, `on_stuck` is called.
  void watch(std::shared_ptr<RankState> state, std::function<void(const std::string&)> on_stuck);
  void stop();

  // Waits until all ranks have come here; the one that serves the store leaves last. False: not within `limit`.
  bool meet_at_end(std::chrono::milliseconds limit, bool serves_store);

 private:
  struct Connections {
    c10::intrusive_ptr<c10d::Store> shared, generation;
  };
  // `store` is used by one request at a time: whatever may block takes a connection of its own.
  Connections connect_anew() const;
  void run_watchdog();
  // Why the run is over, if it is.
  std::optional<std::string> look_around(const Connections& own);
  std::optional<std::string> overdue_operation();
  bool pause(std::chrono::milliseconds time);  // false: stop() was called

  const int world_size_;
  const c10::intrusive_ptr<c10d::Store> shared_;  // the whole store: failures, which launchers report too
  std::string prefix_;
  c10::intrusive_ptr<c10d::Store> store_;  // this generation's keys: a process may connect to one store several times

  std::shared_ptr<RankState> state_;
  std::function<void(const std::string&)> on_stuck_;
  std::thread watchdog_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;  // guarded by mutex_
};

}  // namespace megalith::comm
