// StoreLink: everything a process does through the store besides its groups: it posts its status, learns of failures,
// compares operations in debug mode, and runs the watchdog.
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

// Write and read the failure of a run, in the store, visible to all ranks and launchers. The first report wins.
void report_failure_in(c10d::Store& store, const Failure& failure);
std::optional<Failure> failure_in(c10d::Store& store);
// Returns what a rank is waiting for, as it last posted ("all_reduce 'loss' #12 of tp for 3.1 s"); empty if it waits
// for nobody or has not posted anything.
std::string waits_in(c10d::Store& store, int rank);

// A rank has three connections, however many groups it has: `store` for its own thread; one for the watchdog, which
// must not queue behind a request that waits; one for all groups, where members wait for one another.
//
// The StatusBoard functions are thread-safe. The watchdog runs from watch() to stop().
class StoreLink : public StatusBoard {
 public:
  // `group_timeout` limits how long members of a group wait for one another when they connect (for the id of NCCL's
  // communicator, Gloo's addresses). `patience` is how long an unreachable store is tolerated.
  StoreLink(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size,
            std::chrono::milliseconds group_timeout, std::chrono::milliseconds patience = kStorePatience);
  ~StoreLink() override;

  std::map<int, RankStatus> read(const std::vector<int>& ranks) override;
  void report_failure(const Failure& failure) override;
  std::optional<Failure> failure(std::chrono::milliseconds patience) override;

  // Returns the groups' connection, restricted to the keys of one group. For groups that connect on the rank's own
  // thread, one after the other (NCCL): a wait blocks the connection.
  c10::intrusive_ptr<c10d::Store> store_for(const std::string& group_id);
  // Does the same for groups that connect at the same time, on their own threads (Gloo).
  c10::intrusive_ptr<c10d::Store> polling_store_for(const std::string& group_id);
  // Debug mode; see OpComparer.
  bool compare(const GroupState& group, const Op& op);

  // Starts the watchdog of this rank. At every beat it posts the rank's status and looks for failures and for
  // operations past their limit. A failure ends the rank's operations; if the rank's thread has still not stopped the
  // watchdog some seconds later, `on_stuck` is called.
  //
  // An unreachable store is tolerated for a while (see StorePatience); the run continues meanwhile.
  void watch(std::shared_ptr<RankState> state, std::function<void(const std::string&)> on_stuck);
  // Also calls `on_stuck` if stop() does not follow within `limit` from now: `what` ("closing …") is then stuck.
  void expect_stop(std::chrono::milliseconds limit, const std::string& what);
  void stop();

  // Returns those of `ranks` that have not connected as often as this one. Empty also if the store cannot be asked: an
  // operation reports that.
  std::vector<int> not_connected(const std::vector<int>& ranks);
  // The pause between two looks at the other ranks.
  std::chrono::milliseconds beat() const;

  // Waits until all ranks have come here, and has rank 0 compare the operations they have started. Returns false when
  // they do not come within `limit`, one has failed, or the operations differ, which is then reported.
  bool meet_at_end(std::chrono::milliseconds limit);
  // Makes the last request of this rank: from here on, the end of the store is not a failure. On the rank that serves
  // the store, returns when all others have called it, or after `limit`.
  void leave(std::chrono::milliseconds limit, bool serves_store);

 private:
  struct Connections {
    c10::intrusive_ptr<c10d::Store> shared, generation;
  };
  // Opens a new pair of connections, for a thread that must not share one.
  Connections connect_anew() const;
  c10::intrusive_ptr<c10d::Store> groups_connection();
  // Waits for keys of this generation, in slices, so that a failure elsewhere ends the wait (unless `despite_failure`).
  bool wait_for_keys(const std::vector<std::string>& keys, std::chrono::steady_clock::time_point deadline,
                     bool despite_failure = false);
  // Returns "name/R" for every other rank R.
  std::vector<std::string> keys_of_others(const char* name) const;
  void run_watchdog();
  // Returns the reason why the run is over, if it is.
  std::optional<std::string> look_around(const Connections& own);
  // The three kinds of trouble that the watchdog looks for besides reported failures: an operation past its limit,
  // members that have started different operations, and a shutdown that does not end. Each returns the message.
  std::optional<std::string> overdue_operation();
  std::optional<std::string> split_operations(const Connections& own);
  bool compare_at_end();
  // Returns the status to post; before watch() it contains the rank only.
  RankStatus own_status() const;
  bool pause(std::chrono::milliseconds time);  // returns false once stop() was called
  std::optional<std::string> overdue_stop();

  const int rank_, world_size_;
  const std::chrono::milliseconds group_timeout_, patience_;
  const c10::intrusive_ptr<c10d::Store> shared_;  // the whole store: failures, which launchers also report
  int64_t generation_ = 0;                        // how often this rank has connected to the store
  std::string prefix_;
  c10::intrusive_ptr<c10d::Store> store_;  // keys of this generation: a process may connect to one store repeatedly

  std::shared_ptr<RankState> state_;
  size_t looks_ = 0;  // beats of the watchdog so far
  std::function<void(const std::string&)> on_stuck_;
  std::thread watchdog_;
  std::mutex mutex_;
  std::condition_variable stopping_;
  std::atomic<bool> leaving_ = false;                                   // leave() has been called
  bool stop_ = false;                                                   // guarded by mutex_
  std::optional<std::chrono::steady_clock::time_point> stop_expected_;  // guarded by mutex_
  std::string stop_expected_for_;                                       // guarded by mutex_
  std::mutex groups_mutex_;
  c10::intrusive_ptr<c10d::Store> groups_;  // guarded by groups_mutex_; opened when first needed
};

}  // namespace megalith::comm
