// Cutting and packing: what must hold for all lengths.
#include "megalith/data/sft/packing.h"

#include <gtest/gtest.h>

#include <numeric>

#include "megalith/data/random.h"
#include "megalith/data/sft/encode.h"

namespace megalith::data {
namespace {

TEST(CutTurn, fills_the_limit_and_never_exceeds_it) {
  for (int64_t source = 1; source < 40; ++source)
    for (int64_t target = 0; target < 40; ++target)
      for (int64_t limit = 1; limit < 90; ++limit) {
        const TurnLengths kept = cut_turn(source, target, limit);
        ASSERT_LE(kept.source, source);
        ASSERT_LE(kept.target, target);
        ASSERT_LE(kept.source + kept.target, limit);
        ASSERT_GE(kept.source, 1);
        if (source + target <= limit) {
          ASSERT_EQ(kept.source + kept.target, source + target);
        }
        if (source + target >= limit) {
          ASSERT_EQ(kept.source + kept.target, limit);
        }
      }
}

TEST(PlanRows, the_longest_that_fits_goes_next) {
  const std::vector<int64_t> lengths = {5, 3, 8, 3, 2};
  EXPECT_EQ(plan_rows(lengths, 10), (std::vector<std::vector<size_t>>{{2, 4}, {0, 3}, {1}}));
}

TEST(PlanRows, every_sample_once_and_no_row_too_full) {
  RandomStream random(7);
  for (int round = 0; round < 50; ++round) {
    std::vector<int64_t> lengths;
    const int64_t capacity = 16 + static_cast<int64_t>(random.below(100));
    for (uint64_t i = random.below(200); i > 0; --i)
      lengths.push_back(1 + static_cast<int64_t>(random.below(static_cast<uint64_t>(capacity))));
    std::vector<int> seen(lengths.size(), 0);
    const auto rows = plan_rows(lengths, capacity);
    for (size_t r = 0; r < rows.size(); ++r) {
      int64_t used = 0;
      for (const size_t i : rows[r]) {
        used += lengths[i];
        ++seen[i];
      }
      ASSERT_LE(used, capacity);
      // Nothing that went into a later row would have fitted.
      for (size_t later = r + 1; later < rows.size(); ++later)
        for (const size_t i : rows[later]) ASSERT_GT(used + lengths[i], capacity);
    }
    for (const int count : seen) ASSERT_EQ(count, 1);
  }
}

TEST(PackSamples, rows_are_padded_and_long_samples_left_out) {
  const auto sample = [](int32_t id, size_t count) {
    return Sequence{.ids = std::vector<int32_t>(count, id), .labels = std::vector<int32_t>(count, id)};
  };
  for (const bool neat : {false, true}) {
    const PackedRows packed = pack_samples({sample(1, 3), sample(2, 9), sample(3, 4)}, 8, neat, 0);
    EXPECT_EQ(packed.too_long, 1);
    ASSERT_EQ(packed.rows.size(), 1U);
    const Sequence& row = packed.rows[0];
    EXPECT_EQ(row.ids, (std::vector<int32_t>{3, 3, 3, 3, 1, 1, 1, 0, 0}));
    EXPECT_EQ(row.labels, (std::vector<int32_t>{3, 3, 3, 3, 1, 1, 1, -100, -100}));
    EXPECT_EQ(row.pieces, (std::vector<int32_t>{4, 3}));
    EXPECT_EQ(row.pieces_attend, !neat);
  }
}

}  // namespace
}  // namespace megalith::data
