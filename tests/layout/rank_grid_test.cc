// Ranks and their groups, against nested loops over the axes, for every shape of a few worlds; and the errors for
// shapes that do not fit.
#include "megalith/layout/rank_grid.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "megalith/base/error.h"
#include "megalith/layout/group_kind.h"

namespace megalith::layout {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

GridShape shape(int world, int tp, int pp, int cp = 1, int ep = 1, std::optional<int> etp = std::nullopt) {
  GridShape s;
  s.world_size = world;
  s.tp = tp;
  s.pp = pp;
  s.cp = cp;
  s.ep = ep;
  s.etp = etp;
  return s;
}

// Every possible shape of a few worlds, in both orders of the launcher, with instances and hierarchical cp.
std::vector<GridShape> lattice() {
  std::vector<GridShape> shapes;
  for (int world : {1, 6, 8, 24}) {
    for (int tp : {1, 2, 3}) {
      for (int pp : {1, 2}) {
        for (int cp : {1, 2, 4}) {
          for (int ep : {1, 2, 4}) {
            for (int etp : {1, 2}) {
              for (const char* order : {"tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp", "pp-dp-ep-cp-tp"}) {
                GridShape s = shape(world, tp, pp, cp, ep, etp);
                s.order = order;
                s.num_distributed_optimizer_instances = world % 2 == 0 && tp == 1 ? 2 : 1;
                if (cp == 4) s.hierarchical_cp = {2, 2};
                if (is_possible(s)) shapes.push_back(s);
              }
            }
          }
        }
      }
    }
  }
  return shapes;
}

std::string describe(const GridShape& s) {
  return fmt::format("world {} tp {} pp {} cp {} ep {} etp {} order {} instances {}", s.world_size, s.tp, s.pp, s.cp,
                     s.ep, s.expert_tp(), s.order, s.num_distributed_optimizer_instances);
}

bool holds_part_of_ranks(GroupKind kind) {
  return kind == GroupKind::kEmbedding || kind == GroupKind::kPositionEmbedding;
}

TEST(RankGrid, TheLatticeIsNotEmpty) { EXPECT_GT(lattice().size(), 100U); }

TEST(RankGrid, EveryRankIsInExactlyOneGroupOfEachKind) {
  for (const GridShape& s : lattice()) {
    SCOPED_TRACE(describe(s));
    const RankGrid grid(s);
    for (GroupKind kind : grid.kinds()) {
      if (holds_part_of_ranks(kind)) continue;
      std::vector<int> all;
      for (const auto& group : grid.groups(kind)) all.insert(all.end(), group.begin(), group.end());
      std::sort(all.begin(), all.end());
      std::vector<int> expected(static_cast<size_t>(s.world_size));
      for (int i = 0; i < s.world_size; ++i) expected[static_cast<size_t>(i)] = i;
      ASSERT_EQ(all, expected) << name(kind);
    }
  }
}

TEST(RankGrid, GroupOfARankIsTheEnumeratedOne) {
  for (const GridShape& s : lattice()) {
    SCOPED_TRACE(describe(s));
    const RankGrid grid(s);
    for (GroupKind kind : grid.kinds()) {
      const auto groups = grid.groups(kind);
      for (int rank = 0; rank < s.world_size; ++rank) {
        const auto found = std::find_if(groups.begin(), groups.end(),
                                        [&](const auto& g) { return std::find(g.begin(), g.end(), rank) != g.end(); });
        if (found == groups.end()) {
          ASSERT_THAT(grid.group_of(kind, rank), IsEmpty()) << name(kind);
          ASSERT_EQ(grid.group_rank(kind, rank), std::nullopt);
          continue;
        }
        ASSERT_EQ(grid.group_of(kind, rank), *found) << name(kind) << " of rank " << rank;
        ASSERT_EQ(grid.group_index(kind, rank), found - groups.begin()) << name(kind);
        std::vector<int> sorted = *found;
        std::sort(sorted.begin(), sorted.end());
        ASSERT_EQ(grid.group_rank(kind, rank), std::find(sorted.begin(), sorted.end(), rank) - sorted.begin());
      }
    }
  }
}

// Restates the rule without any arithmetic on strides: ranks are listed by nested loops over the order.
TEST(RankGrid, EveryOrderOfTheAxesFollowsTheNestedLoops) {
  std::vector<std::string> axes{"cp", "dp", "ep", "pp", "tp"};
  const std::map<std::string, int> sizes{{"tp", 2}, {"cp", 2}, {"dp", 3}, {"pp", 1}, {"ep", 1}};
  do {
    GridShape s = shape(12, 2, 1, 2);
    s.order = fmt::format("{}-{}-{}-{}-{}", axes[0], axes[1], axes[2], axes[3], axes[4]);
    SCOPED_TRACE(s.order);
    const RankGrid grid(s);
    std::map<std::string, int> at;
    std::map<std::pair<int, int>, std::vector<int>> dp_groups;  // by (tp, cp)
    int rank = 0;
    const auto size = [&](size_t i) { return sizes.at(axes[i]); };
    for (at[axes[4]] = 0; at[axes[4]] < size(4); ++at[axes[4]])
      for (at[axes[3]] = 0; at[axes[3]] < size(3); ++at[axes[3]])
        for (at[axes[2]] = 0; at[axes[2]] < size(2); ++at[axes[2]])
          for (at[axes[1]] = 0; at[axes[1]] < size(1); ++at[axes[1]])
            for (at[axes[0]] = 0; at[axes[0]] < size(0); ++at[axes[0]]) {
              const RankPlace place = grid.place(rank);
              ASSERT_EQ(place.tp_rank, at["tp"]);
              ASSERT_EQ(place.cp_rank, at["cp"]);
              ASSERT_EQ(place.dp_rank, at["dp"]);
              dp_groups[{at["tp"], at["cp"]}].push_back(rank++);
            }
    for (const auto& [key, ranks] : dp_groups) EXPECT_EQ(grid.group_of(GroupKind::kDp, ranks[0]), ranks);
  } while (std::next_permutation(axes.begin(), axes.end()));
}

// The example worked out in spec/initialize.md §3.
TEST(RankGrid, SixteenRanksTp4Pp2) {
  const RankGrid grid(shape(16, 4, 2));
  EXPECT_EQ(grid.dp(), 2);
  EXPECT_THAT(grid.groups(GroupKind::kDp)[0], ElementsAre(0, 4));
  EXPECT_THAT(grid.groups(GroupKind::kPp)[7], ElementsAre(7, 15));
  EXPECT_THAT(grid.groups(GroupKind::kTpPp)[0], ElementsAre(0, 1, 2, 3, 8, 9, 10, 11));
  EXPECT_EQ(grid.groups(GroupKind::kTpDp), grid.groups(GroupKind::kTpDpCp));
  EXPECT_EQ(grid.groups(GroupKind::kTpEpPp), grid.groups(GroupKind::kTpPp));
}

// Experts are carved out of tp*cp*dp: dense dp stays 4 with ep 4.
TEST(RankGrid, ExpertsDoNotDivideTheDenseDataParallelSize) {
  const RankGrid grid(shape(8, 2, 1, 1, 4, 1));
  EXPECT_EQ(grid.dp(), 4);
  EXPECT_EQ(grid.edp(), 2);
}

TEST(RankGrid, EmbeddingRanksCanBeChosen) {
  const RankGrid grid(
      shape(8, 1, 4),
      [](std::span<const int> pp) {
        return std::vector<int>{pp[3], pp[1]};
      },
      [](std::span<const int>) { return std::vector<int>{}; });
  EXPECT_THAT(grid.groups(GroupKind::kEmbedding)[0], ElementsAre(6, 2));
  EXPECT_EQ(grid.group_rank(GroupKind::kEmbedding, 6), 1);  // communicators number members by global rank
  EXPECT_EQ(grid.group_rank(GroupKind::kEmbedding, 0), std::nullopt);
  EXPECT_FALSE(grid.place(0).in_position_embedding_group);
}

TEST(RankGrid, AStrayEmbeddingRankIsRefused) {
  const RankGrid grid(shape(8, 1, 4), [](std::span<const int>) { return std::vector<int>{7}; });
  EXPECT_THROW(grid.group_of(GroupKind::kEmbedding, 0), ConfigError);
}

TEST(RankGrid, InstancesJoinGroupsUnsorted) {
  GridShape s = shape(16, 2, 2);
  s.num_distributed_optimizer_instances = 2;
  const RankGrid grid(s);
  EXPECT_THAT(grid.group(GroupKind::kIntraDistOpt, 0), ElementsAre(0, 1, 8, 9, 2, 3, 10, 11));
  EXPECT_EQ(grid.group_rank(GroupKind::kIntraDistOpt, 2), 2);
  EXPECT_THAT(grid.group_of(GroupKind::kInterEdp, 0), ElementsAre(0, 4));
}

TEST(RankGrid, PartialKindsOfOneInstanceAreTheWholeGroup) {
  const RankGrid grid(shape(8, 2, 1));
  EXPECT_EQ(grid.groups(GroupKind::kIntraEdp), grid.groups(GroupKind::kEdp));
  EXPECT_THAT(grid.group_of(GroupKind::kInterEdp, 3), ElementsAre(3));
  const auto kinds = grid.kinds();
  EXPECT_EQ(std::count(kinds.begin(), kinds.end(), GroupKind::kIntraEdp), 0);
}

TEST(RankGrid, ErrorsListEveryProblem) {
  GridShape s = shape(12, 4, 2);
  s.hierarchical_cp = {2};
  try {
    RankGrid grid(s);
    FAIL() << "not refused";
  } catch (const ConfigError& e) {
    EXPECT_THAT(e.what(), HasSubstr("impossible parallel layout (2 problems)"));
    EXPECT_THAT(e.what(), HasSubstr("does not divide world_size 12"));
    EXPECT_THAT(e.what(), HasSubstr("hierarchical_cp"));
  }
}

TEST(RankGrid, RanksAndIndicesOutsideAreOurBug) {
  const RankGrid grid(shape(8, 2, 1));
  EXPECT_THROW(grid.place(8), InternalError);
  EXPECT_THROW(grid.group_of(GroupKind::kTp, -1), InternalError);
  EXPECT_THROW(grid.group(GroupKind::kTp, 4), InternalError);
  EXPECT_THROW(grid.groups(GroupKind::kHcp0), InternalError);
}

TEST(RankGrid, SixteenThousandRanksTakeNoTime) {
  const auto start = std::chrono::steady_clock::now();
  const RankGrid grid(shape(16384, 8, 16));
  size_t ranks = 0;
  for (GroupKind kind : grid.kinds()) {
    for (const auto& group : grid.groups(kind)) ranks += group.size();
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_GE(ranks, 16384U * 15);
  RecordProperty("milliseconds", static_cast<int>(seconds * 1000));
  EXPECT_LT(seconds, 3.0);  // 20 ms in a release build; the limit leaves room for sanitizers and a busy machine
}

TEST(GroupKind, NamesReadBothWays) {
  for (GroupKind kind : all_group_kinds()) EXPECT_EQ(group_kind(name(kind)), kind);
  EXPECT_EQ(group_kind("nothing"), std::nullopt);
  EXPECT_EQ(hcp_level(GroupKind::kHcp3), 3);
  EXPECT_EQ(hcp_level(GroupKind::kTp), -1);
}

}  // namespace
}  // namespace megalith::layout
