// Contexts over rank threads: every group kind sums what its ranks say it should.
#include "megalith/parallel/parallel_context.h"

#include <gtest/gtest.h>

#include <numeric>

#include "megalith/base/error.h"
#include "tests/support/run_ranks.h"

namespace megalith::parallel {
namespace {

using layout::GridShape;
using layout::GroupKind;
using testing::Rank;

struct Layout {
  const char* name;
  GridShape shape;
};

class Contexts : public ::testing::TestWithParam<Layout> {};

TEST_P(Contexts, EveryGroupReducesOverItsRanks) {
  const GridShape& shape = GetParam().shape;
  testing::run_ranks(shape.world_size, [&](const Rank& r) {
    const ParallelContext context(r.world, layout::RankGrid(shape));
    for (const GroupKind kind : context.grid().kinds()) {
      if (!context.in_group(kind)) continue;
      const auto ranks = context.grid().group_of(kind, r.rank);
      at::Tensor sum = at::full({1}, r.rank, at::kLong);
      context.group(kind).all_reduce(sum, comm::ReduceOp::kSum, "check");
      EXPECT_EQ(sum.item<int64_t>(), std::accumulate(ranks.begin(), ranks.end(), 0)) << layout::name(kind);
    }
  });
}

TEST_P(Contexts, PlacesAndNeighbours) {
  const GridShape& shape = GetParam().shape;
  testing::run_ranks(shape.world_size, [&](const Rank& r) {
    const ParallelContext context(r.world, layout::RankGrid(shape));
    EXPECT_EQ(context.tp().rank(), context.place().tp_rank);
    EXPECT_EQ(context.pp().rank(), context.place().pp_rank);
    EXPECT_EQ(context.dp().rank(), context.place().dp_rank);
    EXPECT_EQ(context.dp(true).rank(), context.place().dp_cp_rank);
    EXPECT_EQ(context.dp(true, true).rank(), context.place().intra_dp_cp_rank);
    EXPECT_EQ(context.edp().rank(), context.place().edp_rank);
    EXPECT_EQ(context.is_first_stage(), context.place().pp_rank == 0);
    EXPECT_EQ(context.is_last_stage(), context.place().pp_rank == shape.pp - 1);
    EXPECT_EQ(r.world.connected_groups(), 0);  // looking costs nothing
  });
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, Contexts,
    ::testing::Values(Layout{"ranks2_tp2", {.world_size = 2, .tp = 2}},
                      Layout{"ranks4_tp2_pp2", {.world_size = 4, .tp = 2, .pp = 2}},
                      Layout{"ranks8_tp2_cp2_pp2", {.world_size = 8, .tp = 2, .pp = 2, .cp = 2}},
                      Layout{"ranks8_ep4_etp1", {.world_size = 8, .tp = 2, .ep = 4, .etp = 1}},
                      Layout{"ranks16_tp2_pp2_cp2_ep2", {.world_size = 16, .tp = 2, .pp = 2, .cp = 2, .ep = 2}},
                      Layout{"ranks16_instances2",
                             {.world_size = 16, .tp = 2, .pp = 2, .num_distributed_optimizer_instances = 2}}),
    [](const auto& param) { return std::string(param.param.name); });

TEST(ParallelContext, VirtualStagesDecideFirstAndLast) {
  testing::run_ranks(2, [](const Rank& r) {
    const ParallelContext context(r.world, layout::RankGrid({.world_size = 2, .pp = 2, .vpp = 3}));
    EXPECT_EQ(context.is_first_stage(0), r.rank == 0);
    EXPECT_FALSE(context.is_first_stage(1));
    EXPECT_EQ(context.is_last_stage(2), r.rank == 1);
    EXPECT_FALSE(context.is_last_stage(0));
    EXPECT_EQ(context.is_last_stage(), r.rank == 1);
  });
}

// Two layouts of one world may not share a connection by accident, whatever their names and ends have in common.
TEST(ParallelContext, GroupsOfOtherRanksAreOtherGroups) {
  testing::run_ranks(8, [](const Rank& r) {
    const std::vector<int> one = r.rank % 2 == 0 ? std::vector{0, 2, 4, 6} : std::vector{1, 3, 5, 7};
    at::Tensor first = at::full({1}, r.rank, at::kLong), second = first.clone();
    r.world.group("g", one).all_reduce(first);
    if (r.rank == 0 || r.rank == 6 || r.rank == 1 || r.rank == 4)
      r.world.group("g", {0, 1, 4, 6}).all_reduce(second);  // begins, ends and counts like {0, 2, 4, 6}
    EXPECT_EQ(first.item<int64_t>(), r.rank % 2 == 0 ? 12 : 16);
    EXPECT_EQ(second.item<int64_t>(), r.rank == 0 || r.rank == 6 || r.rank == 1 || r.rank == 4 ? 11 : r.rank);
  });
}

TEST(ParallelContext, AWrongWorldSizeIsABug) {
  testing::run_ranks(2, [](const Rank& r) {
    EXPECT_THROW(ParallelContext(r.world, layout::RankGrid({.world_size = 4})), InternalError);
  });
}

}  // namespace
}  // namespace megalith::parallel
