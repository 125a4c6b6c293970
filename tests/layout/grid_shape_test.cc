#include "megalith/layout/grid_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace megalith::layout {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

GridShape grid_of(int world, int tp, int pp, int cp = 1, int ep = 1) {
  GridShape s;
  s.world_size = world;
  s.tp = tp;
  s.pp = pp;
  s.cp = cp;
  s.ep = ep;
  return s;
}

std::string only_message(const GridShape& s) {
  const auto found = problems(s);
  EXPECT_EQ(found.size(), 1U);
  return found.empty() ? "" : found[0].message;
}

TEST(GridShape, WorldNotDivisibleNamesTheNearestLayouts) {
  EXPECT_EQ(only_message(grid_of(12, 4, 2)),
            "tp*pp*cp = 4*2*1 = 8 does not divide world_size 12; dp would be 1.5. With 12 ranks: tp=4 pp=1, tp=2 pp=2, "
            "tp=2 pp=1, tp=1 pp=2, …; or start 8 or 16 ranks.");
}

TEST(GridShape, SuggestionsAlsoFitTheExperts) {
  GridShape s = grid_of(12, 4, 2, 1, 2);  // experts: 4*2*2 = 16 does not divide 12 either
  const auto found = problems(s);
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].code, "world_not_divisible");
  EXPECT_EQ(found[1].code, "expert_grid");
  EXPECT_THAT(found[1].message, HasSubstr("start 16 ranks"));
}

TEST(GridShape, CpIsNamedWhenItWasGiven) {
  EXPECT_THAT(only_message(grid_of(6, 2, 1, 2)), HasSubstr("tp=2 pp=1 cp=1, tp=1 pp=1 cp=2"));
}

TEST(GridShape, EverySuggestionWorks) {
  GridShape s = grid_of(12, 4, 2);
  for (auto [tp, pp] : {std::pair(4, 1), {2, 2}, {2, 1}, {1, 2}}) {
    s.tp = tp;
    s.pp = pp;
    EXPECT_TRUE(is_possible(s)) << tp << " " << pp;
  }
}

TEST(GridShape, ExpertGridSaysWhereEtpComesFrom) {
  const std::string message = only_message(grid_of(8, 2, 1, 1, 8));
  EXPECT_THAT(message, HasSubstr("etp*ep*pp = 2*8*1 = 16 does not divide world_size 8; edp would be 0.5"));
  EXPECT_THAT(message, HasSubstr("etp is tp unless it is given"));
  EXPECT_THAT(message, HasSubstr("ep=8 etp=1, ep=4 etp=2"));
  EXPECT_THAT(message, HasSubstr("start 16 ranks"));
}

TEST(GridShape, AllProblemsAreReportedAtOnce) {
  GridShape s = grid_of(12, 4, 1, 2);
  s.vpp = 2;
  s.order = "tp-dp-pp-xx";
  s.hierarchical_cp = {3};
  EXPECT_THAT(problem_codes(s), ElementsAre("world_not_divisible", "vpp_needs_pp", "order_misses_dimension",
                                            "order_unknown_token", "hcp_product"));
}

TEST(GridShape, OrderMistakesAreNamed) {
  GridShape s = grid_of(8, 2, 2, 1, 2);
  s.order = "tp-dp-pp";
  EXPECT_THAT(only_message(s), HasSubstr("leaves out ep (size 2, experts)"));
  s.order = "tp-cp-ep-dp-pp-xx";
  EXPECT_THAT(only_message(s), HasSubstr("contains 'xx', which is not an axis"));
  s.order = "tp-tp-cp-ep-dp-pp";
  EXPECT_EQ(problems(s).at(0).code, "order_repeats_dimension");
  s.order = "";
  EXPECT_FALSE(is_possible(s));
}

TEST(GridShape, OrderIgnoresCase) {
  GridShape s = grid_of(8, 2, 2);
  s.order = "TP-CP-EP-DP-PP";
  EXPECT_TRUE(is_possible(s));
}

TEST(GridShape, PipelineMustBeSlowestUnlessDataParallelSizesAgree) {
  GridShape s = grid_of(16, 2, 2, 1, 4);
  s.etp = 1;
  s.order = "tp-cp-ep-pp-dp";
  const std::string message = only_message(s);
  EXPECT_THAT(message, HasSubstr("dp=4 and edp=2"));
  EXPECT_THAT(message, HasSubstr("order=tp-cp-ep-dp-pp"));
}

TEST(GridShape, InstancesNameTheAllowedNumbers) {
  GridShape s = grid_of(8, 1, 1, 1, 4);
  s.num_distributed_optimizer_instances = 4;
  EXPECT_EQ(only_message(s), "num_distributed_optimizer_instances=4 does not divide edp = 2. Use one of 1 and 2.");
}

TEST(GridShape, HierarchicalCpSuggestsASplit) {
  GridShape s = grid_of(8, 1, 1, 4);
  s.hierarchical_cp = {2, 3};
  EXPECT_EQ(only_message(s),
            "hierarchical_cp sizes 2*3 multiply to 6, not to cp=4. Use 2 2, or leave hierarchical_cp out.");
  s.hierarchical_cp = {1, 1, 1, 1, 1, 1, 1, 2, 2};
  EXPECT_THAT(problem_codes(s), ElementsAre("hcp_levels"));
}

TEST(GridShape, VirtualStagesNeedAPipeline) {
  GridShape s = grid_of(8, 1, 1);
  s.vpp = 2;
  EXPECT_THAT(only_message(s), HasSubstr("Leave vpp out, or use a pipeline, e.g. pp=2 vpp=2 with 8 ranks"));
}

TEST(GridShape, SizesOutOfRangeAreNamed) {
  GridShape s = grid_of(0, -1, 1);
  EXPECT_THAT(only_message(s), HasSubstr("world_size=0 and tp=-1"));
  EXPECT_THAT(problem_codes(grid_of(8, 2'000'000'000, 2'000'000'000, 2'000'000'000)), ElementsAre("size_out_of_range"));
}

}  // namespace
}  // namespace megalith::layout
