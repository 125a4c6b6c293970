#include "megalith/ops/sequence_layout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"

namespace megalith::ops {
namespace {

TEST(SequenceLayout, DenseBatchIsUniform) {
  const auto layout = SequenceLayout::dense(2, 3);
  EXPECT_EQ(layout.tokens(), 6);
  EXPECT_EQ(layout.sequences(), 2);
  EXPECT_TRUE(layout.uniform());
  EXPECT_EQ(layout.longest(), 3);
  EXPECT_TRUE(layout.positions(at::kCPU).equal(at::tensor({0, 1, 2, 0, 1, 2}, at::kLong)));
}

TEST(SequenceLayout, PackedSequencesRestartPositions) {
  const auto layout = SequenceLayout::packed({2, 1, 3});
  EXPECT_FALSE(layout.uniform());
  EXPECT_EQ(layout.longest(), 3);
  EXPECT_EQ(layout.cumulative(), (std::vector<int64_t>{0, 2, 3, 6}));
  EXPECT_TRUE(layout.positions(at::kCPU).equal(at::tensor({0, 1, 0, 0, 1, 2}, at::kLong)));
  EXPECT_TRUE(layout.cumulative_tensor(at::kCPU).equal(at::tensor({0, 2, 3, 6}, at::kInt)));
}

TEST(SequenceLayout, OwnPositionsReplaceTheCounted) {
  const auto layout = SequenceLayout::dense(1, 2).with_positions(at::tensor({7, 9}, at::kLong));
  EXPECT_EQ(layout.max_position(), 10);
  EXPECT_TRUE(layout.positions(at::kCPU).equal(at::tensor({7, 9}, at::kLong)));
}

TEST(SequenceLayout, EmptyAndBackwardSequencesAreRefused) {
  EXPECT_THROW(SequenceLayout::packed({2, 0}), DataError);
  EXPECT_THROW(SequenceLayout::from_cumulative({0, 3, 2}), DataError);
  EXPECT_THROW(SequenceLayout::from_cumulative({1, 3}), DataError);
}

}  // namespace
}  // namespace megalith::ops
