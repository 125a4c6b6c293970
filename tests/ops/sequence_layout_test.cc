#include "megalith/ops/sequence_layout.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <array>
#include <barrier>
#include <thread>
#include <vector>

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

// Ranks that are threads share the layout of a batch, and all ask for its tensors at first use.
TEST(SequenceLayout, ThreadsThatShareOneGetTheSameTensors) {
  constexpr int kThreads = 4, kRounds = 500;
  for (int round = 0; round < kRounds && !::testing::Test::HasFailure(); ++round) {
    const auto layout = SequenceLayout::packed({2, 1, 3});
    std::array<at::Tensor, kThreads> positions, ends;
    {
      std::barrier start(kThreads);
      std::vector<std::jthread> threads;
      for (size_t i = 0; i < kThreads; ++i)
        threads.emplace_back([&, i] {
          start.arrive_and_wait();
          positions[i] = layout.positions(at::kCPU);
          ends[i] = layout.cumulative_tensor(at::kCPU);
        });
    }
    for (size_t i = 0; i < kThreads; ++i) {
      EXPECT_TRUE(positions[i].is_same(positions[0]));
      EXPECT_TRUE(ends[i].is_same(ends[0]));
    }
  }
}

// A copy stays where it was asked for: asking elsewhere takes it from no one.
TEST(SequenceLayout, EachDeviceHasItsOwnCopy) {
  const auto layout = SequenceLayout::packed({2, 1}).with_positions(at::tensor({4, 5, 6}, at::kLong));
  const at::Tensor here = layout.positions(at::kCPU), there = layout.positions(at::kMeta);
  EXPECT_TRUE(there.is_meta());
  EXPECT_TRUE(layout.positions(at::kCPU).is_same(here));
  EXPECT_TRUE(layout.positions(at::kMeta).is_same(there));
  EXPECT_TRUE(layout.cumulative_tensor(at::kMeta).is_meta());
  EXPECT_TRUE(layout.cumulative_tensor(at::kCPU).equal(at::tensor({0, 2, 3}, at::kInt)));
}

TEST(SequenceLayout, CoordinatesStayWithTheLayout) {
  const at::Tensor coordinates = at::arange(9, at::kLong).view({3, 3});
  const auto plain = SequenceLayout::packed({2, 1});
  EXPECT_FALSE(plain.has_coordinates());
  const auto layout = plain.with_coordinates(coordinates);
  EXPECT_FALSE(plain.has_coordinates());
  for (const SequenceLayout& each :
       {layout, layout.with_max_position(2), layout.with_positions(at::tensor({4, 5, 6}, at::kLong))})
    EXPECT_TRUE(each.coordinates(at::kCPU).equal(coordinates));
  EXPECT_TRUE(layout.positions(at::kCPU).equal(at::tensor({0, 1, 0}, at::kLong)));
  EXPECT_TRUE(layout.coordinates(at::kMeta).is_meta());
  EXPECT_THROW(plain.with_coordinates(at::zeros({3, 2}, at::kLong)), InternalError);
  EXPECT_THROW(plain.with_coordinates(at::zeros({3, 3}, at::kDouble)), InternalError);
  EXPECT_THROW(plain.coordinates(at::kCPU), InternalError);
}

TEST(SequenceLayout, EmptyAndBackwardSequencesAreRefused) {
  EXPECT_THROW(SequenceLayout::packed({2, 0}), DataError);
  EXPECT_THROW(SequenceLayout::from_cumulative({0, 3, 2}), DataError);
  EXPECT_THROW(SequenceLayout::from_cumulative({1, 3}), DataError);
}

}  // namespace
}  // namespace megalith::ops
