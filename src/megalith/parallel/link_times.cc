// Every timing is agreed: all members run the same number of rounds (the first, shared measurement decides how many),
// start each together after a barrier, and take the slowest member's median. Medians ignore a single disturbance; one
// round before the clock starts opens the connections.
//
// Pairs are measured in rounds in which each rank has at most one partner, so that it never waits for a third rank.
#include "megalith/parallel/link_times.h"

#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <set>

#include "megalith/base/error.h"

namespace megalith::parallel {

using comm::OpKind;
using comm::ReduceOp;

namespace {

constexpr const char* kTimingLabel = "self-check timing";
// Odd, so that the median is one of the measured values.
constexpr int kTimedRounds = 7;
// Beyond this many ranks, all pairs would take too long: 16 ranks need 15 rounds, 1024 would need 1023.
constexpr size_t kAllPairsRanks = 16;
// If a first round takes longer than this, few more follow: slow networks are measured in seconds, not minutes.
constexpr double kLongSeconds = 0.1;

using LinkClock = std::chrono::steady_clock;

// Takes a copy, which it reorders.
double median_of_times(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Returns the seconds per call of `repeats` calls in a row, until the device has finished them.
double seconds_of_calls(const std::function<void()>& call, int repeats, at::Device device) {
  const auto begin = LinkClock::now();
  for (int i = 0; i < repeats; ++i) call();
  if (device.is_cuda()) at::accelerator::synchronizeDevice(device.index());
  return std::chrono::duration<double>(LinkClock::now() - begin).count() / repeats;
}

// Returns the largest of the members' numbers, on all of them.
double slowest_member(const comm::Group& group, double seconds, at::Device device) {
  const at::Tensor all = at::full({1}, seconds, at::TensorOptions(device).dtype(at::kDouble));
  group.all_reduce(all, ReduceOp::kMax, kTimingLabel);
  return all.item<double>();
}

// Returns the median time of `call`, which all members make together, as the slowest of them sees it.
double agreed_seconds(const comm::Group& group, const std::function<void()>& call, int repeats, at::Device device) {
  seconds_of_calls(call, 1, device);  // connects
  group.barrier(kTimingLabel);
  const double first = slowest_member(group, seconds_of_calls(call, 1, device), device);
  const bool is_long = first > kLongSeconds;
  std::vector<double> times;
  for (int round = 0; round < (is_long ? 3 : kTimedRounds); ++round) {
    group.barrier(kTimingLabel);
    times.push_back(seconds_of_calls(call, is_long ? 1 : repeats, device));
  }
  return slowest_member(group, median_of_times(times), device);
}

// Returns a call of `op` on fp32 zeros of `bytes` in total, at least one element per rank, and the actual bytes.
std::pair<std::function<void()>, int64_t> call_of(const comm::Group& group, TimedOp op, int64_t bytes,
                                                  at::Device device) {
  const int64_t n = group.size();
  const int64_t block = std::max<int64_t>(1, bytes / static_cast<int64_t>(sizeof(float)) / n), all = block * n;
  const auto zeros = [&](int64_t count) { return at::zeros({count}, at::TensorOptions(device).dtype(at::kFloat)); };
  const auto sent = static_cast<int64_t>(static_cast<size_t>(all) * sizeof(float));
  const at::Tensor buffer = zeros(all);
  switch (op) {
    case TimedOp::kAllReduce:
      return {[=] { group.all_reduce(buffer, ReduceOp::kSum, kTimingLabel); }, sent};
    case TimedOp::kAllGather:
      return {[=, part = zeros(block)] { group.all_gather(buffer, part, kTimingLabel); }, sent};
    case TimedOp::kReduceScatter:
      return {[=, part = zeros(block)] { group.reduce_scatter(part, buffer, ReduceOp::kSum, kTimingLabel); }, sent};
    case TimedOp::kAllToAll:
      return {[=, input = zeros(all)] { group.all_to_all(buffer, input, {}, {}, kTimingLabel); }, sent};
    case TimedOp::kSendRecv:
      break;
  }
  const int next = (group.rank() + 1) % group.size(), previous = (group.rank() + group.size() - 1) % group.size();
  return {[=, output = zeros(all)] {
            group.batch({{OpKind::kSend, buffer, next}, {OpKind::kRecv, output, previous}}, kTimingLabel);
          },
          sent};
}

// Returns the median time of one exchange with `peer`, which is -1 if this rank rests in this round. All ranks of
// `world` call it.
double agreed_pair_seconds(const comm::Group& world, int peer, const at::Tensor& sent, const at::Tensor& received,
                           at::Device device) {
  const auto exchange = [&] {
    if (peer >= 0) world.batch({{OpKind::kSend, sent, peer}, {OpKind::kRecv, received, peer}}, kTimingLabel);
  };
  seconds_of_calls(exchange, 1, device);  // connects
  world.barrier(kTimingLabel);
  const bool is_long = slowest_member(world, seconds_of_calls(exchange, 1, device), device) > kLongSeconds;
  std::vector<double> times;
  for (int round = 0; round < (is_long ? 1 : kTimedRounds); ++round)
    times.push_back(seconds_of_calls(exchange, 1, device));
  return std::max(1e-9, median_of_times(times));
}

// Pairs up all `ranks`, each pair once, by the circle method of tournaments: one stays, the others move by one place
// per round.
std::vector<std::vector<RankPair>> all_pairs(std::vector<int> ranks) {
  std::vector<std::vector<RankPair>> rounds;
  if (ranks.size() % 2 == 1) ranks.push_back(-1);  // the partner of -1 rests
  const size_t n = ranks.size();
  for (size_t round = 0; round + 1 < n; ++round) {
    auto& pairs = rounds.emplace_back();
    for (size_t i = 0; i < n / 2; ++i) {
      const int a = ranks[i], b = ranks[n - 1 - i];
      if (a >= 0 && b >= 0) pairs.emplace_back(std::min(a, b), std::max(a, b));
    }
    std::rotate(ranks.begin() + 1, ranks.end() - 1, ranks.end());
  }
  return rounds;
}

// Pairs neighbors in a ring: even places with the next, then odd places with the next, and, if the number is odd, the
// last with the first.
std::vector<std::vector<RankPair>> ring_pairs(const std::vector<int>& ranks) {
  const size_t n = ranks.size();
  std::vector<std::vector<RankPair>> rounds(n % 2 == 0 ? 2 : 3);
  for (size_t i = 0; i < n; ++i) {
    const int a = ranks[i], b = ranks[(i + 1) % n];
    rounds[n % 2 == 1 && i + 1 == n ? 2 : i % 2].emplace_back(std::min(a, b), std::max(a, b));
  }
  return rounds;
}

// All pairs of a few ranks, otherwise neighbors in a ring.
std::vector<std::vector<RankPair>> pairs_among(const std::vector<int>& ranks) {
  return ranks.size() <= kAllPairsRanks ? all_pairs(ranks) : ring_pairs(ranks);
}

}  // namespace

const char* to_string(TimedOp op) {
  switch (op) {
    case TimedOp::kAllReduce:
      return "all_reduce";
    case TimedOp::kAllGather:
      return "all_gather";
    case TimedOp::kReduceScatter:
      return "reduce_scatter";
    case TimedOp::kAllToAll:
      return "all_to_all";
    case TimedOp::kSendRecv:
      return "send_recv";
  }
  return "?";
}

// The definitions of nccl-tests: an all-reduce moves each block twice (reduce-scatter and all-gather).
double bus_factor(TimedOp op, int ranks) {
  const double moved_once = static_cast<double>(ranks - 1) / ranks;
  if (op == TimedOp::kSendRecv) return 1;
  return op == TimedOp::kAllReduce ? 2 * moved_once : moved_once;
}

double LinkTime::bus_bandwidth(TimedOp op, int ranks) const { return algorithm_bandwidth() * bus_factor(op, ranks); }

LinkTime time_operation(const comm::Group& group, TimedOp op, int64_t bytes, at::Device device) {
  check(group.size() > 1, "group {} has one rank: there is nothing to time", group.name());
  constexpr int kSmallRepeats = 10, kLargeRepeats = 2;
  LinkTime time;
  time.latency_s = agreed_seconds(group, call_of(group, op, 0, device).first, kSmallRepeats, device);
  if (bytes == 0) return time;
  const auto [call, sent] = call_of(group, op, bytes, device);
  time.bytes = sent;
  time.seconds = agreed_seconds(group, call, kLargeRepeats, device);
  return time;
}

// Neighbors by rank cover the links inside machines; the first ranks of the machines cover those between them.
std::vector<std::vector<RankPair>> pair_rounds(const std::vector<std::string>& hosts) {
  std::vector<int> ranks, first_of_host;
  std::set<std::string> seen;
  for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
    ranks.push_back(rank);
    if (seen.insert(hosts[static_cast<size_t>(rank)]).second) first_of_host.push_back(rank);
  }
  auto rounds = pairs_among(ranks);
  if (ranks.size() <= kAllPairsRanks) return rounds;
  std::set<RankPair> planned;
  for (const auto& round : rounds) planned.insert(round.begin(), round.end());
  for (auto& round : pairs_among(first_of_host)) {
    std::erase_if(round, [&](const RankPair& pair) { return !planned.insert(pair).second; });
    if (!round.empty()) rounds.push_back(std::move(round));
  }
  return rounds;
}

std::vector<PairSpeed> time_pairs(const comm::Group& world, const std::vector<std::vector<RankPair>>& rounds,
                                  int64_t bytes, at::Device device) {
  const auto options = at::TensorOptions(device);
  const at::Tensor send_buffer = at::zeros({bytes}, options.dtype(at::kByte)),
                   receive_buffer = at::empty_like(send_buffer);
  const at::Tensor speeds = at::zeros({world.size()}, at::kDouble);  // bytes/s; each rank sets its own entry
  std::vector<PairSpeed> result;
  for (const auto& round : rounds) {
    const auto own_pair = std::ranges::find_if(
        round, [&](const RankPair& pair) { return pair.first == world.rank() || pair.second == world.rank(); });
    const int peer = own_pair == round.end()           ? -1
                     : own_pair->first == world.rank() ? own_pair->second
                                                       : own_pair->first;
    const double seconds = agreed_pair_seconds(world, peer, send_buffer, receive_buffer, device);
    // Both partners of a pair have a speed; the sum over ranks shows all of them to everyone, and the slower one
    // counts.
    speeds.zero_();
    if (peer >= 0) speeds[world.rank()] = static_cast<double>(bytes) / seconds;
    const at::Tensor all = speeds.to(device);
    world.all_reduce(all, ReduceOp::kSum, kTimingLabel);
    const at::Tensor host = all.cpu();
    for (const RankPair& pair : round)
      result.push_back({pair, std::min(host[pair.first].item<double>(), host[pair.second].item<double>())});
  }
  return result;
}

// Links inside and between machines differ by design, so each kind has its own median.
std::vector<PairSummary> summarize_pairs(const std::vector<PairSpeed>& pairs, const std::vector<std::string>& hosts) {
  std::vector<PairSummary> summaries;
  for (const bool between : {false, true}) {
    PairSummary summary{.between_machines = between};
    std::vector<double> speeds;
    for (const PairSpeed& pair : pairs) {
      const auto host = [&](int rank) { return hosts.at(static_cast<size_t>(rank)); };
      if ((host(pair.ranks.first) != host(pair.ranks.second)) != between) continue;
      if (speeds.empty() || pair.bytes_per_second < summary.slowest.bytes_per_second) summary.slowest = pair;
      speeds.push_back(pair.bytes_per_second);
    }
    if (speeds.empty()) continue;
    summary.pairs = static_cast<int>(speeds.size());
    summary.median = median_of_times(speeds);
    summaries.push_back(summary);
  }
  return summaries;
}

}  // namespace megalith::parallel
