#include "megalith/layout/axis_grid.h"

#include <gtest/gtest.h>

namespace megalith::layout {
namespace {

using enum Axis;

// 2 * 3 * 4 ranks: tp fastest, then dp, then pp.
AxisGrid tp2_dp3_pp4() { return {{kTp, kDp, kPp, kCp, kEp}, {2, 1, 1, 3, 4}}; }

TEST(AxisGrid, CoordinatesAreTheDigitsOfARank) {
  const AxisGrid grid = tp2_dp3_pp4();
  EXPECT_EQ(grid.num_ranks(), 24);
  EXPECT_EQ(grid.stride(kPp), 6);
  EXPECT_EQ(grid.coordinate(17, kTp), 1);
  EXPECT_EQ(grid.coordinate(17, kDp), 2);
  EXPECT_EQ(grid.coordinate(17, kPp), 2);
  EXPECT_EQ(grid.coordinate(17, kCp), 0);
}

TEST(AxisGrid, IndexAndPlaceSayTheRank) {
  const AxisGrid grid = tp2_dp3_pp4();
  for (const AxisSet axes : {AxisSet{kTp}, AxisSet{kDp}, AxisSet{kPp, kTp}, AxisSet{}, AxisSet{kTp, kDp, kPp}}) {
    for (int rank = 0; rank < grid.num_ranks(); ++rank) {
      EXPECT_EQ(grid.rank_at(axes, grid.group_index(axes, rank), grid.place(axes, rank)), rank);
    }
  }
}

TEST(AxisGrid, PlacesAscendWithTheRank) {
  const AxisGrid grid = tp2_dp3_pp4();
  const AxisSet axes{kPp, kTp};
  EXPECT_EQ(grid.group_size(axes), 8);
  for (int place = 1; place < 8; ++place) {
    EXPECT_GT(grid.rank_at(axes, 1, place), grid.rank_at(axes, 1, place - 1));
  }
}

TEST(AxisGrid, PlaceInBlockCountsTheRanksOfTheBlock) {
  const AxisGrid grid{{kTp, kDp, kPp, kCp, kEp}, {2, 1, 1, 4, 2}};
  // Blocks of 2 along dp: ranks 0-3 and 8-11, ranks 4-7 and 12-15.
  EXPECT_EQ(grid.place_in_block(kDp, 2, 3), 3);
  EXPECT_EQ(grid.place_in_block(kDp, 2, 4), 0);
  EXPECT_EQ(grid.place_in_block(kDp, 2, 8), 4);
  EXPECT_EQ(grid.place_in_block(kDp, 2, 15), 7);
}

}  // namespace
}  // namespace megalith::layout
