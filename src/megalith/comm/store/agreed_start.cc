// A small agreement protocol over the store, led by rank 0. torchrun keeps the store across restarts, so arrival keys
// of an earlier start may still be there when rank 0 looks:
//
//   every rank   arrival/R = "<random>:<restarts of its agent>"
//   rank 0       proposal/N = all arrivals it sees; again, with N + 1, whenever one of them changes
//   rank R       finds its own random number in proposal N -> agreed/N += 1; otherwise waits for the next proposal
//   rank 0       agreed/N == world_size - 1 -> start/N = "restarts:earlier": the start is number N
//
// A proposal with a stale arrival never gets all votes, because the rank that replaced it does not find its number.
#include "megalith/comm/store/agreed_start.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/text.h"

namespace megalith::comm {

namespace {

using std::chrono::milliseconds;

constexpr const char* kNewest = "proposals";  // their count, which is the number of the newest
constexpr const char* kStarts = "starts";     // count of starts that all ranks agreed on

std::string arrival_key(int rank) { return fmt::format("arrival/{}", rank); }
std::string proposal_key(int64_t number) { return fmt::format("proposal/{}", number); }
std::string agreed_key(int64_t number) { return fmt::format("agreed/{}", number); }
std::string start_key(int64_t number) { return fmt::format("start/{}", number); }  // "restarts:earlier"

// Returns "4f3e…:2": a number that no other process has, and the count of the agent.
std::string make_arrival(int restarts) {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}:{}", random(), random(), random(), restarts);
}

// One rank's part in the agreement. Every step is a write or a read of the store, so a rank that dies leaves the others
// waiting until the deadline, and agents then start all of them again.
class StartTalk {
 public:
  StartTalk(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, int restarts, milliseconds timeout)
      : store_(c10::make_intrusive<c10d::PrefixStore>("megalith/start", store)),
        rank_(rank),
        world_size_(world_size),
        own_(make_arrival(restarts)),
        timeout_(timeout),
        deadline_(std::chrono::steady_clock::now() + timeout) {
    store_->set(arrival_key(rank), own_);
  }

  // Rank 0: returns the number of the start.
  int64_t lead() {
    std::vector<std::string> proposed;
    int64_t number = 0;
    while (true) {
      std::vector<std::string> here = arrivals();
      if (!here.empty() && here != proposed) {
        proposed = std::move(here);
        // The proposal is written before its number is published: a rank that reads the number finds the proposal.
        number = store_->add(kNewest, 0) + 1;
        store_->set(proposal_key(number), fmt::format("{}", fmt::join(proposed, "\n")));
        store_->add(kNewest, 1);
      }
      if (!proposed.empty() && store_->add(agreed_key(number), 0) == world_size_ - 1) break;
      wait_a_little();
    }
    const int64_t earlier = store_->add(kStarts, 1) - 1;
    store_->set(start_key(number), fmt::format("{}:{}", std::max(earlier, most_counted(proposed)), earlier));
    return number;
  }

  // The other ranks: return the number of the start.
  int64_t follow() {
    int64_t agreed = 0;
    while (true) {
      const int64_t newest = store_->add(kNewest, 0);
      if (newest > agreed && holds_own(newest)) {
        store_->add(agreed_key(newest), 1);
        agreed = newest;
      }
      if (agreed > 0 && store_->check({start_key(agreed)})) return agreed;
      wait_a_little();
    }
  }

  // Returns {restarts, earlier}.
  std::pair<int64_t, int64_t> facts_of(int64_t number) {
    const std::string text = store_->get_to_str(start_key(number));
    return {parse_int(text.substr(0, text.find(':'))).value_or(0),
            parse_int(text.substr(text.find(':') + 1)).value_or(0)};
  }

 private:
  // Returns the arrivals of all ranks; empty until all have arrived.
  std::vector<std::string> arrivals() {
    std::vector<std::string> keys;
    for (int rank = 0; rank < world_size_; ++rank) keys.push_back(arrival_key(rank));
    if (!store_->check(keys)) return {};
    std::vector<std::string> values;
    for (const auto& bytes : store_->multiGet(keys)) values.emplace_back(bytes.begin(), bytes.end());
    return values;
  }

  // Returns whether the proposal lists this very process, not an earlier one with the same rank.
  bool holds_own(int64_t number) {
    const std::vector<std::string> listed = split(store_->get_to_str(proposal_key(number)), '\n');
    return static_cast<size_t>(rank_) < listed.size() && listed[static_cast<size_t>(rank_)] == own_;
  }

  // Agents count only the failures of their own ranks, so the largest count is the best.
  static int64_t most_counted(const std::vector<std::string>& proposed) {
    int64_t most = 0;
    for (const std::string& arrival : proposed)
      most = std::max(most, parse_int(arrival.substr(arrival.find(':') + 1)).value_or(0));
    return most;
  }

  void wait_a_little() {
    check<CommError>(std::chrono::steady_clock::now() < deadline_,
                     "rank {}: not all {} ranks reached the start of the run within {:g} s; see the output of the"
                     " other ranks and of torchrun; machines that start more slowly need a larger"
                     " --store_connect_timeout",
                     rank_, world_size_, std::chrono::duration<double>(timeout_).count());
    // Short at first; longer when machines take minutes to arrive.
    std::this_thread::sleep_for(pause_ + milliseconds(world_size_ / 50));
    pause_ = std::min(2 * pause_, milliseconds(100));
  }

  const c10::intrusive_ptr<c10d::Store> store_;
  const int rank_, world_size_;
  const std::string own_;
  const milliseconds timeout_;
  const std::chrono::steady_clock::time_point deadline_;
  milliseconds pause_{5};
};

}  // namespace

AgreedStart agree_on_start(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size, int restarts,
                           milliseconds timeout) {
  StartTalk talk(store, rank, world_size, restarts, timeout);
  const int64_t number = rank == 0 ? talk.lead() : talk.follow();
  const auto [most, earlier] = talk.facts_of(number);
  return {c10::make_intrusive<c10d::PrefixStore>(fmt::format("megalith/start-{}", number), store),
          static_cast<int>(most), earlier};
}

}  // namespace megalith::comm
