// The message for a hang is made from three sources: the operation that this rank waits in, the newest status that each
// other member has posted, and (for threads) the backend's own knowledge. The cause is usually not in this rank, so the
// text leads to the rank to look at: the first that has not begun the operation, with its last known activity.
#include "megalith/comm/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/text.h"

namespace megalith::comm {

namespace {

constexpr double kSilentSeconds = 5;  // a status older than this suggests a dead or frozen process
constexpr size_t kListed = 8;         // ranks that are described individually

// Returns for how long a rank that has posted before has been silent.
double silent_seconds(const TimeoutFacts& facts, int rank) { return facts.now - facts.status.at(rank).posted_at; }

// Returns what a rank posted last, with a hint if that was long ago.
std::string last_words(const TimeoutFacts& facts, int rank) {
  const auto it = facts.status.find(rank);
  if (it == facts.status.end()) return "has never been heard from: it did not start or never connected";
  const double silent = silent_seconds(facts, rank);
  if (silent > kSilentSeconds) return fmt::format("{} (silent for {:.0f} s: dead or frozen)", it->second.last, silent);
  return it->second.last;
}

std::string described(const TimeoutFacts& facts, const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < std::min(kListed, ranks.size()); ++i)
    text += fmt::format("\n    rank {}: {}", ranks[i], last_words(facts, ranks[i]));
  return text;
}

// Returns the members that began the operation and have posted nothing for a while.
std::vector<int> fell_silent(const TimeoutFacts& facts) {
  std::vector<int> silent;
  for (const int rank : facts.group.ranks)
    if (rank != facts.world_rank && facts.status.contains(rank) && silent_seconds(facts, rank) > kSilentSeconds)
      silent.push_back(rank);
  return silent;
}

}  // namespace

// The backend knows best; otherwise a rank has not arrived if the last collective it has posted for the group comes
// before this one. For a transfer it is simply the other side.
std::vector<int> ranks_not_arrived(const TimeoutFacts& facts) {
  if (!facts.missing.empty()) return facts.missing;
  std::vector<int> absent;
  // The sequence of a transfer counts one direction between two ranks, so it cannot be compared with collectives.
  if (is_point_to_point(facts.op.kind)) return {facts.group.ranks.at(static_cast<size_t>(facts.op.peer))};
  for (int rank : facts.group.ranks) {
    if (rank == facts.world_rank) continue;
    const auto it = facts.status.find(rank);
    const auto begun = it == facts.status.end() ? 0 : [&] {
      const auto entry = it->second.begun.find(facts.group.id);
      return entry == it->second.begun.end() ? uint64_t{0} : entry->second;
    }();
    if (begun < facts.op.sequence) absent.push_back(rank);
  }
  return absent;
}

std::string describe_timeout(const TimeoutFacts& facts) {
  const double limit = std::chrono::duration<double>(facts.limit).count();
  std::string text = fmt::format("rank {}: {} of group {} (ranks {}) did not finish within {:g} s.", facts.world_rank,
                                 facts.op.describe(), facts.group.name, list_in_words(facts.group.ranks), limit);
  const std::vector<int> absent = ranks_not_arrived(facts);
  if (!absent.empty()) {
    text += fmt::format("\n  {} not arrived: {}.{}", absent.size() == 1 ? "Rank has" : "Ranks have",
                        list_in_words(absent), described(facts, absent));
    text += fmt::format(
        "\n  Look at rank {} first. If the work between two operations may take longer than {:g} s, raise"
        " --ddp_timeout.",
        absent.front(), limit);
    return text;
  }
  // Everyone has begun, and still nobody has finished: a rank died in the middle of it, or the transport is to blame.
  if (const std::vector<int> silent = fell_silent(facts); !silent.empty())
    return text + fmt::format("\n  All ranks arrived, and then {} fell silent: {}.{}\n  Look at rank {} first.",
                              silent.size() == 1 ? "one" : "some", list_in_words(silent), described(facts, silent),
                              silent.front());
  text +=
      "\n  All ranks arrived: the transfer itself is stuck. Check the network and the interface in use"
      " (megalith doctor --nproc N), and the logs of the other ranks.";
  return text;
}

}  // namespace megalith::comm
