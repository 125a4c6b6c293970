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
#include "megalith/comm/op/status_board.h"
#include "megalith/comm/store/lasting_store.h"

namespace megalith::comm {

// The failure of a run, in the store for all ranks and launchers to see. The first report wins.
void report_failure_in(c10d::Store& store, const Failure& failure);
std::optional<Failure> failure_in(c10d::Store& store);
// What a rank waits for in an operation, as it last posted ("all_reduce 'loss' #12 of tp for 3.1 s"); empty: for
// nobody, or it has not posted anything.
std::string waits_in(c10d::Store& store, int rank);

// A rank has three connections, however many groups it has: `store` for its own thread; one for the watchdog, which
// must not stand behind a request that waits; one for all groups, where members wait for one another.
//
// The board is thread-safe. The watchdog runs from watch() to stop().
class StoreLink : public StatusBoard {
 public:
  // `group_timeout`: how long members of a group wait for one another when they connect (for the id of NCCL's
  // communicator, Gloo's addresses). `patience`: how long a store that does not answer is hoped for.
  StoreLink(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
            std::chrono::milliseconds group_timeout, std::chrono::milliseconds patience = kStorePatience);
  ~StoreLink() override;

  std::map<int, RankStatus> read(const std::vector<int>& ranks) override;
  void report_failure(const Failure& failure) override;
  std::optional<Failure> failure(std::chrono::milliseconds patience) override;

  // The groups' connection with the key space of one group. For groups that connect on the rank's own thread, one after
  // the other (NCCL): a wait holds the connection.
  c10::intrusive_ptr<c10d::Store> store_for(const std::string& group_id);
  // The same for groups that connect at the same time, on threads of their own (Gloo).
  c10::intrusive_ptr<c10d::Store> polling_store_for(const std::string& group_id);
  // Debug mode; see OpComparer.
  bool compare(const GroupState& group, const Op& op);

  // Starts the watchdog of this rank. Every beat it posts the rank's status, looks for failures and for operations past
  // their limit. A failure ends the rank's operations; when the rank's thread has still not stopped the watchdog after
  // some seconds, `on_stuck` is called.
  //
  // A store that cannot be reached is hoped for; see StorePatience. The run continues meanwhile.
  void watch(std::shared_ptr<RankState> state, std::function<void(const std::string&)> on_stuck);
  // `on_stuck` is called as well when stop() has not come within `limit` from now: `what` ("closing …") is stuck.
  void expect_stop(std::chrono::milliseconds limit, const std::string& what);
  void stop();

  // Waits until all ranks have come here, and has rank 0 compare what they have done. False when they have not come
  // within `limit`, one has failed, or they have not all started the same operations, which is then reported.
  bool meet_at_end(std::chrono::milliseconds limit);
  // The last request of this rank. The rank that serves the store returns when all others have called it, or `limit` is
  // over.
  void leave(std::chrono::milliseconds limit, bool serves_store);

 private:
  struct Connections {
    c10::intrusive_ptr<c10d::Store> shared, generation;
  };
  Connections connect_anew() const;
  c10::intrusive_ptr<c10d::Store> groups_connection();
  // Waits for keys of this generation, in slices, so that a failure elsewhere ends it; `despite_failure`: does not.
  bool wait_for_keys(const std::vector<std::string>& keys, std::chrono::steady_clock::time_point deadline,
                     bool despite_failure = false);
  std::vector<std::string> keys_of_others(const char* name) const;
  void run_watchdog();
  // Why the run is over, if it is.
  std::optional<std::string> look_around(const Connections& own);
  std::optional<std::string> overdue_operation();
  std::optional<std::string> split_operations(const Connections& own);
  bool compare_at_end();
  RankStatus own_status() const;
  bool pause(std::chrono::milliseconds time);  // false: stop() was called
  std::optional<std::string> overdue_stop();

  const int rank_, world_size_;
  const std::chrono::milliseconds group_timeout_, patience_;
  const c10::intrusive_ptr<c10d::Store> shared_;  // the whole store: failures, which launchers report too
  std::string prefix_;
  c10::intrusive_ptr<c10d::Store> store_;  // this generation's keys: a process may connect to one store several times

  std::shared_ptr<RankState> state_;
  size_t looks_ = 0;  // of the watchdog
  std::function<void(const std::string&)> on_stuck_;
  std::thread watchdog_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;                                                   // guarded by mutex_
  std::optional<std::chrono::steady_clock::time_point> stop_expected_;  // guarded by mutex_
  std::string stop_expected_for_;                                       // guarded by mutex_
  std::mutex groups_mutex_;
  c10::intrusive_ptr<c10d::Store> groups_;  // guarded by groups_mutex_; made when it is first needed
};

}  // namespace megalith::comm
