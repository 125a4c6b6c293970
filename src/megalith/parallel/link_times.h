// Measures the links of a group: latency and bandwidth of its operations, and of single pairs of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "megalith/comm/group.h"

namespace megalith::parallel {

// The operations that are timed; kSendRecv is a transfer around the ring.
enum class TimedOp { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kSendRecv };
const char* to_string(TimedOp op);

// Bandwidths are defined as in nccl-tests, so that they can be compared with its output. `bytes` is its "size": the
// whole buffer of an all_reduce or all_to_all, the gathered side of an all_gather or reduce_scatter, one message.
struct LinkTime {
  double latency_s = 0;  // time of a message of a few bytes
  int64_t bytes = 0;     // size of the large message; 0 if none was sent
  double seconds = 0;    // time of the large message

  // Returns bytes / seconds; 0 without a large message.
  double algorithm_bandwidth() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
  // Returns the load of one link: independent of the number of ranks as long as the links are the limit.
  double bus_bandwidth(TimedOp op, int ranks) const;
};

// Returns the share of `bytes` that each rank's link carries: 2(n-1)/n for an all_reduce, (n-1)/n for operations that
// move each block once, 1 for send and recv.
double bus_factor(TimedOp op, int ranks);

// Times `op`: the median of several rounds, after one that does not count; only the latency if `bytes` is 0. With
// kSendRecv, each rank sends to the next of the ring and receives from the previous one. On CUDA, from the first launch
// to the end of the last operation on the device. Collective over the group, of at least two ranks; all members get the
// same numbers, those of the slowest.
LinkTime time_operation(const comm::Group& group, TimedOp op, int64_t bytes, at::Device device);

// Two world ranks that exchange a message.
using RankPair = std::pair<int, int>;

// Returns the pairs to measure, in rounds in which no rank is in two pairs: all of them with up to 16 ranks; with more,
// neighbors by rank, and the first ranks of all machines in the same way. `hosts` holds the machine of each rank.
std::vector<std::vector<RankPair>> pair_rounds(const std::vector<std::string>& hosts);

// The result of one pair.
struct PairSpeed {
  RankPair ranks;
  double bytes_per_second = 0;  // in each direction, both at once
};

// Makes the pairs of each round exchange `bytes` in both directions at once. Collective over `world`; all ranks get the
// results of all pairs.
std::vector<PairSpeed> time_pairs(const comm::Group& world, const std::vector<std::vector<RankPair>>& rounds,
                                  int64_t bytes, at::Device device);

// The pairs inside machines, or those between machines.
struct PairSummary {
  bool between_machines = false;
  int pairs = 0;
  double median = 0;  // bytes per second
  PairSpeed slowest;

  // Returns the speed of the slowest pair over the median.
  double slowest_share() const { return median > 0 ? slowest.bytes_per_second / median : 1; }
  // Less than half the usual speed: a bad cable or switch, a throttled or badly placed card.
  bool suspicious() const { return slowest_share() < 0.5; }
};

// Returns one summary for each kind of pair present, since links inside and between machines are not comparable.
std::vector<PairSummary> summarize_pairs(const std::vector<PairSpeed>& pairs, const std::vector<std::string>& hosts);

}  // namespace megalith::parallel
