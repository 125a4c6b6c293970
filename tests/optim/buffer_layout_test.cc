#include "megalith/optim/buffer_layout.h"

#include <gtest/gtest.h>

#include <random>

namespace megalith::optim {
namespace {

TEST(BufferLayout, LastItemsComeFirst) {
  const BufferLayout layout = plan_buffer({{100}, {64}, {10}}, {});
  ASSERT_EQ(layout.buckets.size(), 1U);
  EXPECT_EQ(layout.items[2].begin, 0);
  EXPECT_EQ(layout.items[1].begin, 64);
  EXPECT_EQ(layout.items[0].begin, 128);
  EXPECT_EQ(layout.items[0].end, 228);
  EXPECT_EQ(layout.numel(), 256);  // a multiple of 128
  EXPECT_EQ(layout.buckets[0].items, (std::vector<int>{2, 1, 0}));
}

TEST(BufferLayout, BucketsCloseWhenTheyAreFull) {
  const BufferLayout layout = plan_buffer({{64}, {64}, {64}, {64}}, {.bucket_elements = 128});
  ASSERT_EQ(layout.buckets.size(), 2U);
  EXPECT_EQ(layout.buckets[0].items, (std::vector<int>{3, 2}));
  EXPECT_EQ(layout.buckets[1].items, (std::vector<int>{1, 0}));
  EXPECT_EQ(layout.items[0].bucket, 1);
}

TEST(BufferLayout, ATiedEmbeddingIsAlone) {
  const BufferLayout layout = plan_buffer({{64, true}, {64}, {64}}, {});
  ASSERT_EQ(layout.buckets.size(), 2U);
  EXPECT_EQ(layout.buckets[1].items, (std::vector<int>{0}));
}

TEST(BufferLayout, PadsForBandwidth) {
  const BufferLayout layout = plan_buffer({{100}}, {.shards = 3, .pad_for_bandwidth = true});
  EXPECT_EQ(layout.numel() % 65536, 0);
  EXPECT_EQ(layout.numel() % (3 * 64), 0);
}

TEST(BufferLayout, NothingIsAnEmptyBuffer) { EXPECT_EQ(plan_buffer({}, {}).numel(), 0); }

// Whatever the sizes: items do not overlap, start where they must, and shards are equal and aligned.
TEST(BufferLayout, HoldsItsPromisesForRandomSizes) {
  std::mt19937 rng(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<BufferItem> items(1 + rng() % 12);
    for (BufferItem& item : items) item = {static_cast<int64_t>(1 + rng() % 700), rng() % 5 == 0};
    const BufferRules rules{.bucket_elements = static_cast<int64_t>(rng() % 1500),
                            .shards = 1 + static_cast<int>(rng() % 9)};
    const BufferLayout layout = plan_buffer(items, rules);
    int64_t end = 0;
    size_t seen = 0;
    for (size_t b = 0; b < layout.buckets.size(); ++b) {
      const auto& bucket = layout.buckets[b];
      EXPECT_EQ(bucket.begin, b == 0 ? 0 : layout.buckets[b - 1].end);
      EXPECT_EQ(bucket.numel() % (rules.shards * kAlignElements), 0);
      for (const int i : bucket.items) {
        const auto& item = layout.items[i];
        EXPECT_EQ(item.begin % kAlignElements, 0);
        EXPECT_GE(item.begin, end);
        EXPECT_EQ(item.end - item.begin, items[i].numel);
        EXPECT_EQ(item.bucket, static_cast<int>(b));
        EXPECT_LE(item.end, bucket.end);
        end = item.end;
        ++seen;
      }
      for (int r = 0; r < rules.shards; ++r) EXPECT_EQ(layout.shard_begin(static_cast<int>(b), r) % kAlignElements, 0);
    }
    EXPECT_EQ(seen, items.size());
  }
}

}  // namespace
}  // namespace megalith::optim
