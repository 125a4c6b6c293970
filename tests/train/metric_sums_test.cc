#include "megalith/train/report/metric_sums.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "megalith/base/error.h"
#include "megalith/layout/rank_grid.h"
#include "tests/support/expect.h"
#include "tests/support/run_ranks.h"

namespace megalith::train {
namespace {

TEST(MetricSums, AreSummedOverMicrobatchesAndRanks) {
  testing::run_ranks(2, [](const testing::Rank& r) {
    const parallel::ParallelContext context(r.world, layout::RankGrid({.world_size = 2}));
    MetricSums sums({"loss", "accuracy"});
    sums.add("loss", at::scalar_tensor(1.5 + r.rank), 2);  // a tensor, which is not read before the end
    sums.add("loss", 0.5, 2);
    if (r.rank == 1) sums.add("accuracy", 3, 4);
    const std::vector<MetricTotal> totals = sums.reduce(context, "metrics");
    ASSERT_EQ(totals.size(), 2);
    EXPECT_EQ(totals[0].name, "loss");
    EXPECT_EQ(totals[0].sum, 5);
    EXPECT_EQ(totals[0].weight, 8);
    EXPECT_EQ(totals[1].name, "accuracy");
    EXPECT_EQ(totals[1].mean(), 0.75);
  });
}

TEST(MetricSums, ANameThatWasNotAnnouncedIsRefused) {
  MetricSums sums({"loss"});
  testing::expect_error<InternalError>([&] { sums.add("los", 1, 1); }, {"los"});
}

TEST(MetricTotal, TheMeanOfNothingIsZero) {
  MetricTotal total{"loss"};
  EXPECT_EQ(total.mean(), 0);
  total.add({"loss", 3, 2});
  EXPECT_EQ(total.mean(), 1.5);
}

}  // namespace
}  // namespace megalith::train
