#include "megalith/parallel/link_times.h"

#include <gtest/gtest.h>

#include <set>

#include "megalith/parallel/layout_groups.h"
#include "tests/support/run_ranks.h"

namespace megalith::parallel {
namespace {

using testing::Rank;

std::vector<std::string> machines(int count, int ranks_each) {
  std::vector<std::string> hosts;
  for (int i = 0; i < count * ranks_each; ++i) hosts.push_back(fmt::format("node{}", i / ranks_each));
  return hosts;
}

// Every rank at most once in a round, every pair at most once in all; returns all pairs.
std::set<RankPair> checked_pairs(const std::vector<std::vector<RankPair>>& rounds) {
  std::set<RankPair> all;
  for (const auto& round : rounds) {
    std::set<int> busy;
    for (const RankPair& pair : round) {
      EXPECT_LT(pair.first, pair.second);
      EXPECT_TRUE(busy.insert(pair.first).second && busy.insert(pair.second).second) << "a rank is in two pairs";
      EXPECT_TRUE(all.insert(pair).second) << pair.first << " and " << pair.second << " meet twice";
    }
  }
  return all;
}

TEST(LinkTimes, AllPairsOfFewRanksMeetOnce) {
  for (const int ranks : {1, 2, 3, 4, 7, 8, 16}) {
    const auto rounds = pair_rounds(machines(1, ranks));
    EXPECT_EQ(checked_pairs(rounds).size(), static_cast<size_t>(ranks * (ranks - 1) / 2)) << ranks;
    EXPECT_LE(rounds.size(), static_cast<size_t>(ranks)) << ranks;
  }
}

TEST(LinkTimes, ManyRanksMeetTheirNeighboursAndAllMachinesMeet) {
  for (const auto& [count, each] : {std::pair{3, 8}, {5, 5}, {40, 8}}) {
    const int ranks = count * each;
    const auto pairs = checked_pairs(pair_rounds(machines(count, each)));
    for (int rank = 0; rank + 1 < ranks; ++rank) EXPECT_TRUE(pairs.contains({rank, rank + 1})) << rank;
    EXPECT_TRUE(pairs.contains({0, ranks - 1}));
    EXPECT_TRUE(pairs.contains({0, each})) << "the first ranks of the first two machines";
    EXPECT_LE(pairs.size(), static_cast<size_t>(ranks + count * 8));
    if (count > 16) continue;
    for (int a = 0; a < count; ++a)
      for (int b = a + 1; b < count; ++b) EXPECT_TRUE(pairs.contains({a * each, b * each})) << a << " " << b;
  }
}

TEST(LinkTimes, TheSlowestPairIsComparedWithItsOwnKind) {
  const std::vector<PairSpeed> pairs{{{0, 1}, 100}, {{2, 3}, 90}, {{1, 2}, 10}, {{0, 3}, 4}, {{0, 2}, 12}};
  const auto summaries = summarize_pairs(pairs, machines(2, 2));
  ASSERT_EQ(summaries.size(), 2U);
  EXPECT_FALSE(summaries[0].between_machines);
  EXPECT_EQ(summaries[0].slowest.ranks, (RankPair{2, 3}));
  EXPECT_FALSE(summaries[0].suspicious());
  EXPECT_TRUE(summaries[1].between_machines);
  EXPECT_EQ(summaries[1].slowest.ranks, (RankPair{0, 3}));
  EXPECT_EQ(summaries[1].median, 10);
  EXPECT_DOUBLE_EQ(summaries[1].slowest_share(), 0.4);
  EXPECT_TRUE(summaries[1].suspicious());
  EXPECT_EQ(summarize_pairs(pairs, machines(1, 4)).size(), 1U);
}

// The factors of nccl-tests, doc/PERFORMANCE.md.
TEST(LinkTimes, BusBandwidthIsThatOfNcclTests) {
  const LinkTime time{.latency_s = 1e-6, .bytes = 1000, .seconds = 0.5};
  EXPECT_DOUBLE_EQ(time.algorithm_bandwidth(), 2000);
  EXPECT_DOUBLE_EQ(time.bus_bandwidth(TimedOp::kAllReduce, 4), 3000);
  EXPECT_DOUBLE_EQ(time.bus_bandwidth(TimedOp::kAllGather, 4), 1500);
  EXPECT_DOUBLE_EQ(time.bus_bandwidth(TimedOp::kReduceScatter, 4), 1500);
  EXPECT_DOUBLE_EQ(time.bus_bandwidth(TimedOp::kAllToAll, 4), 1500);
  EXPECT_DOUBLE_EQ(time.bus_bandwidth(TimedOp::kSendRecv, 4), 2000);
}

TEST(LinkTimes, AllMembersGetTheSameTimes) {
  testing::run_ranks(3, [](const Rank& rank) {
    const comm::Group world = rank.world.world();
    for (const TimedOp op :
         {TimedOp::kAllReduce, TimedOp::kAllGather, TimedOp::kReduceScatter, TimedOp::kAllToAll, TimedOp::kSendRecv}) {
      const LinkTime time = time_operation(world, op, 1000, at::kCPU);
      EXPECT_EQ(time.bytes, 996) << "whole elements for each of three ranks";
      EXPECT_GT(time.latency_s, 0);
      EXPECT_GT(time.seconds, 0);
      const auto texts = world.all_gather_bytes(fmt::format("{} {}", time.latency_s, time.seconds));
      EXPECT_EQ(texts, std::vector<std::string>(3, texts[0]));
      EXPECT_EQ(time_operation(world, op, 0, at::kCPU).bytes, 0);
    }
    const auto pairs = time_pairs(world, pair_rounds(machines(1, 3)), 1 << 16, at::kCPU);
    ASSERT_EQ(pairs.size(), 3U);
    for (const PairSpeed& pair : pairs) EXPECT_GT(pair.bytes_per_second, 0);
  });
}

std::vector<std::string> names_of(const layout::GridShape& shape) {
  std::vector<std::string> names;
  for (const GroupUse& use : groups_of_run(layout::RankGrid(shape))) names.push_back(use.name());
  return names;
}

TEST(LayoutGroups, AreThoseOfMoreThanOneRankThatARunUses) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(names_of({.world_size = 1}), Names{});
  EXPECT_EQ(names_of({.world_size = 4, .tp = 2, .pp = 2}), (Names{"tp", "pp", "embedding", "tp_dp_cp", "world"}));
  EXPECT_EQ(names_of({.world_size = 2}), (Names{"dp_cp", "intra_dp_cp", "dp", "tp_dp_cp", "world"}));
  EXPECT_EQ(names_of({.world_size = 4, .ep = 2}),
            (Names{"dp_cp", "intra_dp_cp", "dp", "tp_dp_cp", "ep", "tp_ep", "edp", "intra_edp", "world"}));
  EXPECT_EQ(names_of({.world_size = 4, .cp = 4, .hierarchical_cp = {2, 2}}),
            (Names{"dp_cp", "intra_dp_cp", "cp", "hcp_0", "hcp_1", "tp_dp_cp", "world"}));
}

}  // namespace
}  // namespace megalith::parallel
