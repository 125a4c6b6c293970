// The state of a rank beyond its groups: whether the run is over, and the messages for operations that failed or are
// late. An error should name the rank that caused it, not the one that noticed: a failed transport is first checked
// against the failures that others have reported, then against the ranks that have gone silent.
#include <fmt/format.h>

#include <algorithm>
#include <future>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/comm/diagnosis.h"
#include "megalith/comm/group.h"
#include "megalith/comm/group_internal.h"

namespace megalith::comm {

namespace {

// Returns when each other member of the group last posted its status; empty if the store does not answer.
std::map<int, double> posts_of_others(const GroupState& group) {
  std::map<int, double> posts;
  if (!group.owner->board) return posts;
  try {
    for (const auto& [rank, status] : group.owner->board->read(group.ranks))
      if (rank != group.owner->rank) posts[rank] = status.posted_at;
  } catch (const std::exception&) {
    posts.clear();
  }
  return posts;
}

// Names the ranks that have posted nothing between two readings: live ones post about twice per second.
std::string silent_since(const std::map<int, double>& before, const std::map<int, double>& after) {
  std::string text;
  for (const auto& [rank, posted] : after)
    if (const auto earlier = before.find(rank); earlier != before.end() && earlier->second == posted)
      text += fmt::format("\n  rank {} is silent: dead or frozen. Look at it first.", rank);
  return text;
}

// Asks on a separate thread, since a driver whose device is stuck may never answer; no answer counts as not done.
bool is_done(const std::shared_ptr<PendingOp>& pending) {
  constexpr std::chrono::seconds kPatience{2};
  auto answer = std::make_shared<std::promise<bool>>();
  auto answered = answer->get_future();
  std::thread([pending, answer] {
    try {
      answer->set_value(pending->done());
    } catch (const std::exception&) {
      answer->set_value(true);  // it has failed: the rank's own thread reports how
    }
  }).detach();
  return answered.wait_for(kPatience) == std::future_status::ready && answered.get();
}

}  // namespace

// Reports first, so that the others stop waiting as well, then ends the run on this rank.
void throw_timeout(const GroupState& group, const OpInfo& op, const std::vector<int>& missing) {
  RankState& owner = *group.owner;
  const std::string message = owner.timeout_message(group, op, missing);
  if (owner.board) owner.board->report_failure({owner.rank, message});
  owner.end_run(message);
  throw CommError(message);
}

// Statuses are read twice, with the wait for a reported failure in between: a rank that posts nothing in that time is
// named as silent.
void throw_failed(const GroupState& group, const OpInfo& op, const std::string& reason) {
  constexpr std::chrono::milliseconds kPatience{1500};  // a launcher reports the death of a rank within this time
  const RankState& owner = *group.owner;
  const auto before = posts_of_others(group);
  if (const auto first = owner.board ? owner.board->failure(kPatience) : std::nullopt;
      first && first->rank != owner.rank)
    throw PeerFailure(fmt::format("rank {}: ended in {} of group {} because another rank failed: {}", owner.rank,
                                  op.describe(), group.name, first->reason));
  throw CommError(fmt::format("rank {}: {} of group {} (ranks {}) failed: {}{}", owner.rank, op.describe(), group.name,
                              list_in_words(group.ranks), reason, silent_since(before, posts_of_others(group))));
}

// The flag is set before running operations are aborted: one that is started in between is caught by abort_if_over.
void RankState::end_run(const std::string& reason) {
  {
    std::lock_guard lock(mutex_);
    if (over_.empty()) over_ = reason;
  }
  // The handles are weak: an operation whose Work was dropped needs no abort.
  for (const auto& running : recorder.in_flight())
    if (const auto pending = running.pending.lock()) pending->abort(reason);
}

std::string RankState::timeout_message(const GroupInfo& group, const OpInfo& op,
                                       const std::vector<int>& missing) const {
  TimeoutFacts facts;
  facts.world_rank = rank;
  facts.group = group;
  facts.op = op;
  facts.limit = timeout.load();
  for (int member : missing) facts.missing.push_back(group.ranks.at(static_cast<size_t>(member)));
  if (board) facts.status = board->read(group.ranks);
  facts.now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return describe_timeout(facts);
}

// Looks at the oldest first. An operation that the device has not reached is late because of the work before it. Called
// on the watchdog's thread at every beat.
std::optional<std::string> RankState::overdue_message(std::chrono::milliseconds limit) {
  const auto now = OpRecorder::Clock::now();
  const std::vector<OpRecorder::InFlight> running = recorder.in_flight();
  const auto overdue = std::ranges::find_if(running, [&](const OpRecorder::InFlight& running_op) {
    if (now - running_op.begun < limit) return false;
    const auto pending = running_op.pending.lock();
    // If it is done on the host, its owner has simply not asked for the result yet.
    return running_op.completion || !running_op.reached() || !pending || !is_done(pending);
  });
  if (overdue == running.end()) return std::nullopt;
  if (!overdue->reached())
    return fmt::format(
        "rank {}: its device has not reached {} of group {} within {:g} s of its start: a kernel launched before"
        " it hangs. If the work between two operations may take longer, raise --ddp_timeout.",
        rank, overdue->op.describe(), overdue->group->name, std::chrono::duration<double>(limit).count());
  return timeout_message(*overdue->group, overdue->op);
}

void RankState::throw_if_over() {
  std::lock_guard lock(mutex_);
  if (!over_.empty()) throw PeerFailure(fmt::format("rank {}: the run is over: {}", rank, over_));
}

// The lock is released before abort(), which may take the transport's own locks.
void RankState::abort_if_over(PendingOp& pending) {
  std::string reason;
  {
    std::lock_guard lock(mutex_);
    reason = over_;
  }
  if (!reason.empty()) pending.abort(reason);
}

}  // namespace megalith::comm
