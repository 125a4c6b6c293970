// How fast the links of a group are: latency and bandwidth of its operations, and of single pairs of ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "megalith/comm/group.h"

namespace megalith::parallel {

enum class TimedOp { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kSendRecv };
const char* to_string(TimedOp op);

// Bandwidths are those of nccl-tests, so that they can be compared with its output. `bytes` is what it calls the size:
// the whole buffer of an all_reduce or all_to_all, the gathered side of an all_gather or reduce_scatter, one message.
struct LinkTime {
  double latency_s = 0;  // of a message of a few bytes
  int64_t bytes = 0;     // of the large message; 0: none was sent
  double seconds = 0;    // that it took

  // bytes / seconds; 0 without a large message.
  double algorithm_bandwidth() const { return seconds > 0 ? static_cast<double>(bytes) / seconds : 0; }
  // What one link carries: independent of the number of ranks as long as the links are the limit.
  double bus_bandwidth(TimedOp op, int ranks) const;
};

// The share of `bytes` that each rank's link carries: 2(n-1)/n for an all_reduce, (n-1)/n for what moves each block
// once, 1 for send and recv.
double bus_factor(TimedOp op, int ranks);

// Times `op`: medians of several rounds, after one that does not count. With `bytes` 0 only the latency. kSendRecv:
// each rank sends to the next of the ring and receives from the one before. On CUDA from the first launch to the end of
// the last operation on the device. Collective over the group, of at least two ranks; all members get the same numbers,
// those of the slowest.
LinkTime time_operation(const comm::Group& group, TimedOp op, int64_t bytes, at::Device device);

// Two world ranks that exchange a message.
using RankPair = std::pair<int, int>;

// Which pairs are measured, in rounds in which no rank is in two: with up to 16 ranks all of them; with more, the
// neighbours by rank, and the first ranks of all machines in the same way. `hosts` has the machine of each rank.
std::vector<std::vector<RankPair>> pair_rounds(const std::vector<std::string>& hosts);

struct PairSpeed {
  RankPair ranks;
  double bytes_per_second = 0;  // in each direction, both at once
};

// Has the pairs of each round exchange `bytes` in both directions at once. Collective over `world`; all ranks get all
// pairs.
std::vector<PairSpeed> time_pairs(const comm::Group& world, const std::vector<std::vector<RankPair>>& rounds,
                                  int64_t bytes, at::Device device);

// The pairs inside machines, or those between machines.
struct PairSummary {
  bool between_machines = false;
  int pairs = 0;
  double median = 0;  // bytes per second
  PairSpeed slowest;

  double slowest_share() const { return median > 0 ? slowest.bytes_per_second / median : 1; }
  // Less than half of what is usual: a cable, a switch, a throttled or badly placed card.
  bool suspicious() const { return slowest_share() < 0.5; }
};

// One for each of the two kinds that there are: links of one kind are alike, those of the other are not.
std::vector<PairSummary> summarize_pairs(const std::vector<PairSpeed>& pairs, const std::vector<std::string>& hosts);

}  // namespace megalith::parallel
