// Loaders and the thread that runs ahead of training.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <atomic>

#include "megalith/base/error.h"
#include "megalith/data/batch_loader.h"
#include "megalith/data/token_table.h"
#include "megalith/io/prefetch.h"

namespace megalith::data {
namespace {

// Sample i is the row {i, i}: one token after the shift.
std::shared_ptr<const Dataset> numbered(int64_t size) {
  TokenTable table;
  for (int32_t i = 0; i < size; ++i) table.append(Sequence{.ids = {i, i}, .labels = {i, i}});
  return dataset_of(std::move(table), {});
}

class NumberedStream : public SampleStream {
 public:
  explicit NumberedStream(int64_t size) : size_(size) {}
  std::optional<Sample> next() override {
    if (at_ == size_) return std::nullopt;
    const auto i = static_cast<int32_t>(at_++);
    return Sample{{.ids = {i, i}, .labels = {i, i}}, {}};
  }
  bool skip() override { return next().has_value(); }

 private:
  int64_t size_, at_ = 0;
};

std::vector<int64_t> ids_of(const StepBatch& step) {
  std::vector<int64_t> ids;
  for (const MicroBatch& batch : step.microbatches)
    ids.insert(ids.end(), batch.ids.data_ptr<int64_t>(), batch.ids.data_ptr<int64_t>() + batch.ids.numel());
  return ids;
}

ShapeOfStep constant(const BatchShape& shape) {
  return [shape](int64_t) { return shape; };
}

TEST(BatchLoader, deals_steps_to_ranks_and_resumes) {
  const Sampler sampler({.size = 20, .shuffle = false});
  const auto loader = [&](LoaderStart start) {
    return make_batch_loader(numbered(20), sampler, Collator({}), constant({2, 2, 2, 1}), start);
  };
  const auto whole = loader({});
  const auto first = whole->next(), second = whole->next(), third = whole->next();
  EXPECT_EQ(ids_of(*first), (std::vector<int64_t>{2, 3, 6, 7}));
  EXPECT_EQ(ids_of(*second), (std::vector<int64_t>{10, 11, 14, 15}));
  EXPECT_TRUE(second->ends_epoch);
  EXPECT_EQ(ids_of(*third), (std::vector<int64_t>{2, 3, 6, 7}));
  EXPECT_EQ(third->after.epoch, 1);
  EXPECT_EQ(ids_of(*loader({first->after, first->samples})->next()), ids_of(*second));
}

TEST(BatchLoader, the_shape_may_follow_the_consumed_samples) {
  const Sampler sampler({.size = 20, .shuffle = false});
  const auto loader = make_batch_loader(numbered(20), sampler, Collator({}), [](int64_t consumed) {
    return BatchShape{1, consumed < 4 ? 2 : 4, 1, 0};
  });
  EXPECT_EQ(ids_of(*loader->next()).size(), 2U);
  EXPECT_EQ(ids_of(*loader->next()).size(), 2U);
  EXPECT_EQ(ids_of(*loader->next()), (std::vector<int64_t>{4, 5, 6, 7}));
}

TEST(StreamLoader, agrees_with_numbered_samples) {
  const Sampler sampler({.size = 21, .shuffle = false});
  const OpenStream open = [](int64_t) { return std::make_unique<NumberedStream>(21); };
  for (int64_t dp = 1; dp <= 4; ++dp)
    for (int64_t rank = 0; rank < dp; ++rank) {
      const auto shape = constant({1, 2, dp, rank});
      const auto expected = make_batch_loader(numbered(21), sampler, Collator({}), shape);
      const auto streamed = make_stream_loader(open, Collator({}), shape);
      for (int step = 0; step < 12; ++step) {
        const auto want = expected->next(), got = streamed->next();
        ASSERT_EQ(ids_of(*got), ids_of(*want));
        ASSERT_EQ(got->ends_epoch, want->ends_epoch) << "step " << step << " of rank " << rank << " of " << dp;
        // And a loader that resumes there continues alike.
        const auto resumed = make_stream_loader(open, Collator({}), shape, {got->after, 0});
        const auto again = make_batch_loader(numbered(21), sampler, Collator({}), shape, {got->after, 0});
        ASSERT_EQ(ids_of(*resumed->next()), ids_of(*again->next()));
      }
    }
}

TEST(StreamLoader, an_epoch_ends_with_its_last_full_step) {
  // 6 samples of two; then a step takes three, which the rest of an epoch of 8 does not fill.
  const OpenStream open = [](int64_t) { return std::make_unique<NumberedStream>(8); };
  const auto growing = [](int64_t consumed) { return BatchShape{1, consumed < 6 ? 2 : 3, 1, 0}; };
  const auto loader = make_stream_loader(open, Collator({}), growing);
  std::vector<bool> ends;
  std::vector<SamplerPosition> after;
  for (int step = 0; step < 6; ++step) {
    const auto batch = loader->next();
    ends.push_back(batch->ends_epoch);
    after.push_back(batch->after);
  }
  EXPECT_EQ(ends, (std::vector<bool>{false, false, true, false, true, false}));
  EXPECT_EQ(after, (std::vector<SamplerPosition>{{0, 2}, {0, 4}, {0, 6}, {1, 3}, {1, 6}, {2, 3}}));
}

TEST(StreamLoader, a_stream_without_enough_samples_is_refused) {
  const OpenStream open = [](int64_t) { return std::make_unique<NumberedStream>(3); };
  EXPECT_THROW(make_stream_loader(open, Collator({}), constant({4, 1, 1, 0}))->next(), DataError);
}

TEST(Prefetcher, keeps_the_order_and_ends) {
  int at = 0;
  io::Prefetcher<int> ahead([&]() -> std::optional<int> { return at < 100 ? std::optional(at++) : std::nullopt; }, 3);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(ahead.next(), i);
  EXPECT_EQ(ahead.next(), std::nullopt);
  EXPECT_EQ(ahead.next(), std::nullopt);
}

TEST(Prefetcher, holds_no_more_than_its_capacity) {
  std::atomic<int> made{0};
  io::Prefetcher<int> ahead([&]() -> std::optional<int> { return made++; }, 2);
  for (int i = 0; i < 50; ++i) {
    ASSERT_EQ(ahead.next(), i);
    // Given out, held, and one that is being made.
    ASSERT_LE(made.load(), i + 1 + 2 + 1);
  }
}

TEST(Prefetcher, errors_come_after_the_items_before_them) {
  int at = 0;
  io::Prefetcher<int> ahead(
      [&]() -> std::optional<int> {
        if (at == 2) throw DataError("line 3 is broken");
        return at++;
      },
      8);
  EXPECT_EQ(ahead.next(), 0);
  EXPECT_EQ(ahead.next(), 1);
  EXPECT_THROW(ahead.next(), DataError);
  EXPECT_THROW(ahead.next(), DataError);
}

TEST(Prefetcher, ends_while_its_thread_waits_for_room) {
  for (int round = 0; round < 20; ++round) {
    io::Prefetcher<int> ahead([]() -> std::optional<int> { return 1; }, 1);
    if (round % 2 == 0) ahead.next();
  }
}

}  // namespace
}  // namespace megalith::data
