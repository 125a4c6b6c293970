// A rank uses the store over three connections: its own (reports, debug mode, the end of the run), the watchdog's, and
// the groups'. Keys live in two spaces:
//
//   megalith/failure            the first failure of the run; launchers read and write it, too
//   megalith/connected/R        how often rank R has connected to this store: its generation
//   megalith/G/status/R         the newest status of rank R in generation G
//   megalith/G/op/…             debug mode: what each member is about to start
//   megalith/G/closing/R, gone/R  the end of the run
//
// The watchdog thread posts the status and looks for trouble at every beat. It never touches the rank's data: it ends
// operations through RankState::end_run and, if that does not help, calls on_stuck.
#include "megalith/comm/store_link_internal.h"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/comm/op/current_device.h"
#include "megalith/comm/op/flight_record.h"
#include "megalith/comm/op/op_history.h"
#include "megalith/comm/store/polling_store.h"

namespace megalith::comm {

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kGrace{3000};  // time for a rank's own thread to notice that the run is over

// Often enough to tell a stuck rank from a slow one, rarely enough for one store to serve thousands of ranks.
milliseconds beat_of(int world_size) { return milliseconds(500) + milliseconds(world_size / 5); }

// Outside any generation, since launchers use it, too.
constexpr const char* kFailureKey = "megalith/failure";

// The store is served by a launcher or by rank 0, which end last, so its end means that the run has ended.
constexpr const char* kStoreGone = "the store is gone: the launcher, or the rank that served it, has ended";

std::string status_key(int rank) { return fmt::format("status/{}", rank); }
std::string connected_key(int rank) { return fmt::format("megalith/connected/{}", rank); }
std::string generation_prefix(int64_t generation) { return fmt::format("megalith/{}", generation); }

}  // namespace

// compareSet with an empty expectation writes only if there is no value yet: the first failure stays.
void report_failure_in(c10d::Store& store, const Failure& failure) {
  store.compareSet(kFailureKey, std::string(), fmt::format("{}\n{}", failure.rank, failure.reason));
}

// The value is "rank\nreason"; the reason may have several lines.
std::optional<Failure> failure_in(c10d::Store& store) {
  if (!store.check({kFailureKey})) return std::nullopt;
  const std::string text = store.get_to_str(kFailureKey);
  const size_t cut = text.find('\n');
  return Failure{static_cast<int>(parse_int(text.substr(0, cut)).value_or(-1)), text.substr(cut + 1)};
}

// Only a status that begins with "in" describes a wait; "finished …" and "computing …" do not.
std::string waits_in(c10d::Store& store, int rank) {
  const int64_t generation = store.add(connected_key(rank), 0);
  const std::string key = fmt::format("{}/{}", generation_prefix(generation), status_key(rank));
  if (generation == 0 || !store.check({key})) return "";
  const std::string last = RankStatus::from_json(store.get_to_str(key)).last;
  return last.starts_with("in ") ? last.substr(3) : "";
}

StoreLink::StoreLink(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, milliseconds group_timeout,
                     milliseconds patience)
    : rank_(rank), world_size_(world_size), group_timeout_(group_timeout), patience_(patience), shared_(store) {
  // All ranks connect equally often, so each can count its own generation without asking the others.
  generation_ = store->add(connected_key(rank), 1);
  prefix_ = generation_prefix(generation_);
  store_ = c10::make_intrusive<c10d::PrefixStore>(prefix_, store);
}

StoreLink::Connections StoreLink::connect_anew() const {
  const auto shared = shared_->clone();
  return {shared, c10::make_intrusive<c10d::PrefixStore>(prefix_, shared)};
}

StoreLink::~StoreLink() { stop(); }

std::map<int, RankStatus> StoreLink::read(const std::vector<int>& ranks) {
  std::map<int, RankStatus> statuses;
  try {
    for (int rank : ranks)
      if (store_->check({status_key(rank)}))
        statuses[rank] = RankStatus::from_json(store_->get_to_str(status_key(rank)));
  } catch (const std::exception&) {
    // The store is gone; the message gets by without the status.
  }
  return statuses;
}

std::vector<int> StoreLink::not_connected(const std::vector<int>& ranks) {
  std::vector<int> missing;
  try {
    for (const int rank : ranks)
      if (shared_->add(connected_key(rank), 0) < generation_) missing.push_back(rank);
  } catch (const std::exception&) {
    return {};
  }
  return missing;
}

milliseconds StoreLink::beat() const { return beat_of(world_size_); }

void StoreLink::report_failure(const Failure& failure) {
  try {
    report_failure_in(*shared_, failure);
  } catch (const std::exception&) {
    // The store is gone; the others notice that by themselves.
  }
}

// Polls instead of waiting in the store, which would hold the connection that report_failure needs.
std::optional<Failure> StoreLink::failure(milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  try {
    while (true) {
      if (auto found = failure_in(*shared_)) return found;
      if (std::chrono::steady_clock::now() >= deadline) return std::nullopt;
      std::this_thread::sleep_for(milliseconds(20));
    }
  } catch (const StoreEnded&) {
    return Failure{-1, kStoreGone};
  } catch (const std::exception&) {
    return std::nullopt;  // unreachable for the moment: no failure is known
  }
}

c10::intrusive_ptr<c10d::Store> StoreLink::groups_connection() {
  std::lock_guard lock(groups_mutex_);
  if (!groups_) {
    groups_ = connect_anew().generation;
    groups_->setTimeout(group_timeout_);
  }
  return groups_;
}

c10::intrusive_ptr<c10d::Store> StoreLink::store_for(const std::string& group_id) {
  return c10::make_intrusive<c10d::PrefixStore>("group/" + group_id, groups_connection());
}

c10::intrusive_ptr<c10d::Store> StoreLink::polling_store_for(const std::string& group_id) {
  return c10::make_intrusive<c10d::PrefixStore>("group/" + group_id,
                                                c10::make_intrusive<PollingStore>(groups_connection()));
}

// Every member writes the signature of its operation and reads those of the others, before any of them starts.
bool StoreLink::compare(const GroupState& group, const Op& op) {
  const bool transfer = is_point_to_point(op.kind);
  const int sender = op.kind == OpKind::kRecv ? op.peer : group.rank;
  const auto key = [&](int member, uint64_t sequence) {
    return transfer
               ? fmt::format("op/{}/{}>{}/{}", group.id, sender, sender == group.rank ? op.peer : group.rank, sequence)
               : fmt::format("op/{}/{}/{}", group.id, sequence, member);
  };
  // The two sides of a transfer are a send and a recv: dtype and size must agree, the shape need not.
  const std::string signature =
      transfer ? fmt::format("{} {}", c10::toString(op.output.scalar_type()), op.output.numel()) : op.signature();
  if (op.kind != OpKind::kRecv) store_->set(key(group.rank, op.sequence), signature + "\n" + op.describe());
  // A sender only announces: waiting for the receiver would forbid sends that run ahead.
  if (op.kind == OpKind::kSend) return true;

  for (int member = 0; member < static_cast<int>(group.ranks.size()); ++member) {
    if (member == group.rank || (transfer && member != op.peer)) continue;
    const auto deadline = std::chrono::steady_clock::now() + group.owner->timeout.load();
    while (!store_->check({key(member, op.sequence)})) {
      group.owner->throw_if_over();
      if (std::chrono::steady_clock::now() >= deadline) return false;
      std::this_thread::sleep_for(milliseconds(1));
    }
    const std::string peer_op = store_->get_to_str(key(member, op.sequence));
    const size_t cut = peer_op.find('\n');
    if (peer_op.substr(0, cut) == signature) continue;
    const std::string message = fmt::format(
        "the ranks of group {} are not doing the same thing:\n  rank {}: {}\n  rank {}: {}", group.name,
        group.owner->rank, op.describe(), group.ranks[static_cast<size_t>(member)], peer_op.substr(cut + 1));
    report_failure({group.owner->rank, message});
    throw CommError(message);
  }
  // A rank that has posted number n has read all of n - 1. All have posted n here, so nobody still needs n - 2.
  if (!transfer && op.sequence > 2) store_->deleteKey(key(group.rank, op.sequence - 2));
  return true;
}

void StoreLink::watch(std::shared_ptr<RankState> state, std::function<void(const std::string&)> on_stuck) {
  state_ = std::move(state);
  on_stuck_ = std::move(on_stuck);
  watchdog_ = std::thread([this] {
    try {
      make_device_current(state_->device);  // querying an event would otherwise create a context on GPU 0
    } catch (const std::exception&) {
      // A GPU that has failed is reported by the thread that uses it; this one continues to watch.
    }
    run_watchdog();
  });
}

// The flag is set under the lock that pause() waits with, so the watchdog cannot miss the wake-up.
void StoreLink::stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
}

bool StoreLink::pause(milliseconds time) {
  std::unique_lock lock(mutex_);
  return !stopping_.wait_for(lock, time, [&] { return stop_; });
}

void StoreLink::expect_stop(milliseconds limit, const std::string& what) {
  std::lock_guard lock(mutex_);
  stop_expected_ = std::chrono::steady_clock::now() + limit;
  stop_expected_for_ = what;
}

std::optional<std::string> StoreLink::overdue_stop() {
  std::lock_guard lock(mutex_);
  if (!stop_expected_ || std::chrono::steady_clock::now() < *stop_expected_) return std::nullopt;
  return fmt::format("rank {}: {} is stuck", rank_, stop_expected_for_);
}

// Beats until stop() is called or the run is over. The connection is opened here, since the store may be unreachable at
// any time; only prolonged silence counts as the end of the store. Once this rank is leaving, the store may end: the
// rank that serves it waits for the goodbyes of the others, not for their processes.
void StoreLink::run_watchdog() {
  std::optional<std::string> over;
  StorePatience patience(patience_);
  Connections own;
  do {
    try {
      if (!own.shared) own = connect_anew();
      over = look_around(own);
      patience.answered();
    } catch (const std::exception& error) {
      if (patience.is_gone_after(error) && !leaving_) over = kStoreGone;
    }
    if (!over) over = overdue_stop();
    if (over) break;
  } while (pause(beat()));
  if (!over) return;
  state_->end_run(*over);
  if (state_->device.is_cuda()) write_flight_record(rank_);
  // The rank's own thread gets some seconds to throw and unwind; then the process is ended from here.
  if (pause(kGrace) && on_stuck_) on_stuck_(*over);
}

// One beat: post first, so that the others see a sign of life even if the checks below find something.
std::optional<std::string> StoreLink::look_around(const Connections& own) {
  own.generation->set(status_key(rank_), own_status().to_json());
  if (auto found = failure_in(*own.shared)) return found->reason;
  if (auto split = split_operations(own)) return split;
  return overdue_operation();
}

// Compares with one other member of one group at a time: over several beats all pairs of neighbors in all groups get
// their turn, and a difference between any two members shows up between two neighbors.
std::optional<std::string> StoreLink::split_operations(const Connections& own) {
  constexpr size_t kLooks = 4;  // beats from one comparison to the next
  if (++looks_ % kLooks != 0) return std::nullopt;
  const auto groups = state_->recorder.groups();
  if (groups.empty()) return std::nullopt;
  const GroupInfo& group = *groups[looks_ / kLooks % groups.size()];
  std::map<int, OpExcerpt> members;
  const auto add = [&](int rank) {
    if (!own.generation->check({status_key(rank)})) return;
    RankStatus status = RankStatus::from_json(own.generation->get_to_str(status_key(rank)));
    if (const auto known = status.operations.find(group.id); known != status.operations.end())
      members[rank] = std::move(known->second);
  };
  add(group.ranks[static_cast<size_t>(group.rank + 1) % group.ranks.size()]);
  members[rank_] = state_->recorder.operations(group);
  if (!find_split(members, /*all_have_ended=*/false)) return std::nullopt;
  for (const int rank : group.ranks)
    if (!members.contains(rank)) add(rank);  // to tell the minority from the majority
  const auto split = find_split(members, /*all_have_ended=*/false);
  if (!split) return std::nullopt;
  const auto op = state_->recorder.operation(group, split->sequence);
  const std::string message = describe_split(*split, group.name, rank_, op ? &*op : nullptr);
  report_failure({split->fewer.front(), message});
  return message;
}

std::optional<std::string> StoreLink::overdue_operation() {
  // The rank's own thread reports at the limit, but cannot while it waits for the GPU or if it never asks for the
  // result.
  const auto message = state_->overdue_message(state_->timeout.load() + milliseconds(2000));
  if (message) report_failure({state_->rank, *message});
  return message;
}

std::vector<std::string> StoreLink::keys_of_others(const char* name) const {
  std::vector<std::string> keys;
  for (int rank = 0; rank < world_size_; ++rank)
    if (rank != rank_) keys.push_back(fmt::format("{}/{}", name, rank));
  return keys;
}

// Waits in slices of a second, so that a failure elsewhere is noticed between two of them.
bool StoreLink::wait_for_keys(const std::vector<std::string>& keys, std::chrono::steady_clock::time_point deadline,
                              bool despite_failure) {
  constexpr milliseconds kSlice{1000};
  StorePatience patience(patience_);
  while (true) {
    const auto left = std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left <= milliseconds(0)) return false;
    try {
      if (!despite_failure && failure_in(*shared_)) return false;
      store_->wait(keys, std::min(left, kSlice));
      return true;
    } catch (const c10::DistStoreError&) {
      patience.answered();  // not yet
    } catch (const std::exception& error) {
      if (patience.is_gone_after(error) || !pause(beat())) return false;
    }
  }
}

// Each rank leaves its own key, and rank 0 waits for all of them in one request; the others wait for the one key that
// rank 0 then leaves. So a run of thousands of ranks ends with a few requests per rank, and a request that is repeated
// over a new connection counts once.
bool StoreLink::meet_at_end(milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  constexpr const char* kAllHere = "closing/all";
  try {
    if (rank_ != 0) {
      store_->set(fmt::format("closing/{}", rank_), own_status().to_json());
      return wait_for_keys({kAllHere}, deadline);
    }
    if (!wait_for_keys(keys_of_others("closing"), deadline)) return false;
    if (!compare_at_end()) return false;
    store_->set(kAllHere, std::string("1"));
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Compares the operations of all ranks: short runs end before the watchdogs have compared anything.
bool StoreLink::compare_at_end() {
  std::map<std::string, std::map<int, OpExcerpt>> groups;
  const auto add = [&](const RankStatus& status) {
    for (const auto& [id, excerpt] : status.operations) groups[id][status.rank] = excerpt;
  };
  add(own_status());
  for (const std::string& key : keys_of_others("closing")) add(RankStatus::from_json(store_->get_to_str(key)));
  // Group ids begin with the name of the group, "tp:0-3:…", which is what the message shows.
  for (const auto& [id, members] : groups) {
    const auto split = find_split(members, /*all_have_ended=*/true);
    if (!split) continue;
    std::optional<OpInfo> op;
    for (const GroupInfo* group : state_->recorder.groups())
      if (group->id == id) op = state_->recorder.operation(*group, split->sequence);
    const std::string message = describe_split(*split, id.substr(0, id.find(':')), rank_, op ? &*op : nullptr);
    report_failure({split->fewer.front(), message});
    return false;
  }
  return true;
}

RankStatus StoreLink::own_status() const { return state_ ? state_->recorder.status(rank_) : RankStatus{.rank = rank_}; }

void StoreLink::leave(milliseconds limit, bool serves_store) {
  leaving_ = true;
  try {
    if (!serves_store) return store_->set(fmt::format("gone/{}", rank_), std::string("1"));
    wait_for_keys(keys_of_others("gone"), std::chrono::steady_clock::now() + limit, /*despite_failure=*/true);
  } catch (const std::exception&) {
    // Nobody is left to tell.
  }
}

}  // namespace megalith::comm
