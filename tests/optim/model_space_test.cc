#include "megalith/optim/model_space.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/support/close.h"

namespace megalith::optim {
namespace {

TEST(Rectangles, AMatrixIsCutInThreeAtMost) {
  const auto parts = rectangles({4, 10}, 7, 35);
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].offset, (std::vector<int64_t>{0, 7}));
  EXPECT_EQ(parts[0].extent, (std::vector<int64_t>{1, 3}));
  EXPECT_EQ(parts[1].offset, (std::vector<int64_t>{1, 0}));
  EXPECT_EQ(parts[1].extent, (std::vector<int64_t>{2, 10}));
  EXPECT_EQ(parts[2].offset, (std::vector<int64_t>{3, 0}));
  EXPECT_EQ(parts[2].extent, (std::vector<int64_t>{1, 5}));
}

TEST(Rectangles, WithinARow) {
  const auto parts = rectangles({4, 10}, 12, 15);
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].offset, (std::vector<int64_t>{1, 2}));
}

// Every element of the range is in exactly one rectangle, at its place; neighbours in memory stay neighbours.
TEST(Rectangles, CoverEveryRangeOfEveryShape) {
  std::mt19937 rng(3);
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{37}, {5, 7}, {3, 4, 5}, {2, 3, 1, 4}, {1, 9}, {9, 1}}) {
    const at::Tensor whole = at::zeros(shape);
    const int64_t n = whole.numel();
    for (int round = 0; round < 100; ++round) {
      const int64_t begin = static_cast<int64_t>(rng() % n),
                    end = begin + 1 + static_cast<int64_t>(rng() % (n - begin));
      whole.zero_();
      const auto parts = rectangles(shape, begin, end);
      EXPECT_LE(parts.size(), 2 * shape.size() - 1);
      for (const Rectangle& r : parts) {
        at::Tensor view = whole;
        for (size_t d = 0; d < shape.size(); ++d) view = view.narrow(static_cast<int64_t>(d), r.offset[d], r.extent[d]);
        EXPECT_EQ(view.storage_offset(), r.begin);
        view.add_(1);
      }
      at::Tensor expected = at::zeros({n});
      expected.narrow(0, begin, end - begin).fill_(1);
      EXPECT_TRUE(whole.view(-1).equal(expected)) << begin << " to " << end;
    }
  }
}

// A fused parameter with padding: pieces of state, cut anywhere, find back to the tensors they belong to.
TEST(ShardedRange, NamesThePiecesOfAFusedParameter) {
  const nn::Parameter p({.name = "qkv.weight",
                         .parts = {{"q.weight", {8, 4}, {4, 0}, {4, 4}, 0},
                                   {"k.weight", {3, 4}, {2, 0}, {1, 4}, 4}}},  // rows 5 and 6: padding
                        at::arange(7 * 4, at::kFloat).view({7, 4}));
  std::mt19937 rng(5);
  for (int round = 0; round < 50; ++round) {
    const int64_t cut = static_cast<int64_t>(rng() % 28);
    at::Tensor q = at::full({8, 4}, -1.0), k = at::full({3, 4}, -1.0);
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, cut}, {cut, 28}}) {
      if (begin == end) continue;
      const at::Tensor flat = p.value.view(-1).narrow(0, begin, end - begin);
      for (const auto& part : sharded_range(p, begin, end, flat, "m.", 3)) {
        EXPECT_EQ(part.replica, 3);
        at::Tensor& whole = part.name == "m.q.weight" ? q : k;
        EXPECT_EQ(part.global_shape, whole.sizes().vec());
        whole.narrow(0, part.offset[0], part.local.size(0))
            .narrow(1, part.offset[1], part.local.size(1))
            .copy_(part.local);
      }
    }
    EXPECT_TRUE(q.narrow(0, 4, 4).equal(p.value.narrow(0, 0, 4)));
    EXPECT_TRUE(q.narrow(0, 0, 4).eq(-1).all().item<bool>());
    EXPECT_TRUE(k[2].equal(p.value[4]));
    EXPECT_TRUE(k.narrow(0, 0, 2).eq(-1).all().item<bool>());
  }
}

}  // namespace
}  // namespace megalith::optim
