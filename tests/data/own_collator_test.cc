// Collators of one's own: what they may give, and what is refused.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/data/batch_loader.h"
#include "megalith/data/collator.h"
#include "megalith/data/micro_batch.h"
#include "tests/support/expect.h"

namespace megalith::data {
namespace {

using testing::expect_error;

std::vector<Sample> two_samples() {
  const Sequence row{.ids = {1, 2, 3, 4, 5}, .labels = {1, 2, 3, 4, 5}};
  return {{row, {}}, {row, {}}};
}

// Two rows of eight tokens, the last three of them padding.
MicroBatch rows_of_eight() {
  MicroBatch batch;
  batch.ids = at::arange(16).view({2, 8});
  batch.labels = batch.ids + 1;
  batch.labels.slice(1, 5).fill_(kIgnoredLabel);
  batch.extras["weight"] = {at::rand({2, 8})};
  batch.extras["box"] = {at::rand({2, 8, 4})};
  batch.extras["reward"] = {at::rand({2, 3}), ExtraOf::kRows};
  batch.extras["prices"] = {at::rand({5}), ExtraOf::kBatch};
  return batch;
}

Collator giving(const MicroBatch& batch, const CollatorOptions& options = {.cp = 2}) {
  return {options, [batch](std::span<const Sample>, const Collator&) { return batch; }};
}

TEST(OwnCollator, rows_become_tokens) {
  const MicroBatch given = rows_of_eight();
  const MicroBatch batch = giving(given).collate(two_samples());
  EXPECT_TRUE(batch.ids.equal(at::arange(16)));
  EXPECT_EQ(batch.labels.sizes(), (at::IntArrayRef{16}));
  EXPECT_EQ(batch.layout.cumulative(), (std::vector<int64_t>{0, 8, 16}));
  EXPECT_TRUE(batch.layout.uniform());
  EXPECT_EQ(batch.samples, 2);
  EXPECT_EQ(batch.sequences, 2);
  EXPECT_EQ(batch.loss_tokens, 10);
  EXPECT_EQ(batch.real_tokens, 16);
  EXPECT_TRUE(batch.extra("weight", at::kCPU).equal(given.extras.at("weight").values.flatten()));
  EXPECT_EQ(batch.extra("box", at::kCPU).sizes(), (at::IntArrayRef{16, 4}));
  EXPECT_TRUE(batch.extra("reward", at::kCPU).equal(given.extras.at("reward").values));
  EXPECT_TRUE(batch.extra("prices", at::kCPU).equal(given.extras.at("prices").values));
}

TEST(OwnCollator, a_layout_says_which_tokens_form_a_sequence) {
  MicroBatch given;
  given.ids = given.labels = at::arange(12);
  given.layout = ops::SequenceLayout::packed({4, 8});
  given.extras["weight"] = {at::rand({12})};
  given.extras["reward"] = {at::rand({2}), ExtraOf::kRows};
  given.real_tokens = 9;
  const MicroBatch batch = giving(given).collate(two_samples());
  EXPECT_EQ(batch.layout.cumulative(), (std::vector<int64_t>{0, 4, 12}));
  EXPECT_EQ(batch.sequences, 2);
  EXPECT_EQ(batch.real_tokens, 9);
}

TEST(OwnCollator, may_add_to_the_built_in_batch) {
  const CollatorOptions options{.pad_id = 9, .cp = 2, .tp = 2};
  const Collator collator(options, [](std::span<const Sample> samples, const Collator& built_in) {
    EXPECT_FALSE(built_in.is_own());
    MicroBatch batch = built_in.collate(samples);
    batch.labels.fill_(kIgnoredLabel);
    return batch;
  });
  EXPECT_TRUE(collator.is_own());
  const MicroBatch plain = Collator(options).collate(two_samples()), own = collator.collate(two_samples());
  EXPECT_TRUE(own.ids.equal(plain.ids));
  EXPECT_EQ(own.real_tokens, plain.real_tokens);
  EXPECT_EQ(own.loss_tokens, 0);  // counted in what it gave
  const MicroBatch bare = collator.collate(two_samples(), CollateParts::kLayoutOnly);
  EXPECT_FALSE(bare.ids.defined() || bare.labels.defined());
  EXPECT_EQ(bare.layout.cumulative(), plain.layout.cumulative());
}

TEST(OwnCollator, padded_lengths_can_always_be_shared) {
  for (int64_t cp = 1; cp <= 4; ++cp)
    for (const int64_t tp : {1, 2, 3, 8})
      for (int64_t tokens = 0; tokens < 40; ++tokens) {
        const CollatorOptions options{.cp = cp, .tp = tp};
        const int64_t length = Collator(options).padded_length(tokens);
        ASSERT_GE(length, std::max<int64_t>(tokens, 1));
        MicroBatch batch;
        batch.ids = batch.labels = at::zeros({2, length}, at::kLong);
        ASSERT_EQ(giving(batch, options).collate(two_samples()).tokens(), 2 * length);
      }
}

TEST(OwnCollator, wrong_batches_are_refused) {
  const auto refused = [](const std::function<void(MicroBatch&)>& change, const std::vector<std::string>& parts) {
    MicroBatch batch = rows_of_eight();
    change(batch);
    for (const CollateParts stage : {CollateParts::kAll, CollateParts::kLayoutOnly})  // on every stage alike
      expect_error<DataError>([&] { giving(batch, {.cp = 2, .tp = 2}).collate(two_samples(), stage); }, parts);
  };
  // Missing tensors.
  refused([](MicroBatch& b) { b.ids = at::Tensor(); }, {"has not set \"ids\"", "int64 [rows, tokens]"});
  refused([](MicroBatch& b) { b.labels = at::Tensor(); }, {"has not set \"labels\"", "int64 [2, 8]"});
  refused([](MicroBatch& b) { b.extras["weight"].values = at::Tensor(); }, {"extra tensor \"weight\" is undefined"});
  // Types and values.
  refused([](MicroBatch& b) { b.ids = b.ids.to(at::kInt); }, {"\"ids\" is int32 [2, 8]", "must be int64"});
  refused([](MicroBatch& b) { b.labels = b.labels.to(at::kFloat); }, {"\"labels\" is float32 [2, 8]", "int64 [2, 8]"});
  refused([](MicroBatch& b) { b.labels.index_put_({0, 3}, -1); }, {"\"labels\" [2, 8] holds -1", "or -100"});
  refused([](MicroBatch& b) { b.ids.index_put_({1, 2}, -5); }, {"\"ids\" [2, 8] holds -5"});
  // Shapes that do not fit one another.
  refused([](MicroBatch& b) { b.ids = b.ids.unsqueeze(0); }, {"\"ids\" is int64 [1, 2, 8]", "[tokens] with a layout"});
  refused([](MicroBatch& b) { b.ids = at::empty({2, 0}, at::kLong); }, {"\"ids\" is int64 [2, 0]", "at least one"});
  refused([](MicroBatch& b) { b.labels = b.labels.slice(1, 1); }, {"\"labels\" is int64 [2, 7]", "int64 [2, 8]"});
  refused([](MicroBatch& b) { b.ids = b.labels = at::arange(16); }, {"\"ids\" is int64 [16]", "layout has 0 tokens"});
  refused([](MicroBatch& b) { b.layout = ops::SequenceLayout::dense(2, 4); }, {"layout has 8 tokens"});
  refused(
      [](MicroBatch& b) {
        b.extras["weight"].values = at::rand({2, 7});
      },
      {"\"weight\" is float32 [2, 7]", "begins with the sizes of \"ids\", [2, 8]"});
  refused(
      [](MicroBatch& b) {
        b.extras["reward"].values = at::rand({3, 3});
      },
      {"\"reward\" is float32 [3, 3]", "begins with their number, 2"});
  // Lengths that ranks cannot share: cp 2 cuts sequences into four, sequence parallelism all tokens into tp 2 more.
  const auto of_length = [](int64_t length) {
    return [length](MicroBatch& b) {
      b.extras.clear();
      b.ids = b.labels = at::ones({1, length}, at::kLong);
    };
  };
  refused(of_length(6), {"\"ids\" is int64 [1, 6]", "sequence 0 has 6 tokens", "context_parallel_size 2",
                         "multiple of 4", "this one to 8"});
  refused(
      [](MicroBatch& b) {
        b.ids = b.labels = at::ones({10}, at::kLong);
        b.extras.clear();
        b.layout = ops::SequenceLayout::packed({4, 6});
      },
      {"\"ids\" is int64 [10]", "sequence 1 has 6 tokens"});
  // Counts.
  refused([](MicroBatch& b) { b.real_tokens = 17; }, {"2 sequences and 17 real tokens", "has 2 and 16"});
  refused([](MicroBatch& b) { b.sequences = 3; }, {"3 sequences", "has 2 and 16"});
  refused(
      [](MicroBatch& b) {
        b.preference = true;
        b.sequences = 1;
      },
      {"preference pairs with 1 sequences"});
}

TEST(OwnCollator, the_total_is_shared_by_sequence_parallel_ranks) {
  MicroBatch batch;
  batch.ids = batch.labels = at::ones({1, 8}, at::kLong);
  expect_error<DataError>([&] { giving(batch, {.cp = 2, .tp = 3}).collate(two_samples()); },
                          {"\"ids\" is int64 [1, 8]", "6 ranks", "multiple of 12", "here 12"});
}

TEST(OwnCollator, serves_loaders_at_any_start_and_size) {
  class Numbers : public Dataset {
   public:
    int64_t size() const override { return 12; }
    Sample sample(int64_t index) const override {
      const auto id = static_cast<int32_t>(index);
      return {.row = {.ids = {id, id}, .labels = {id, id}}, .rejected = {}};
    }
  };
  const Collator collator({}, [](std::span<const Sample> samples, const Collator& built_in) {
    MicroBatch batch = built_in.collate(samples);
    batch.extras["double"] = {batch.ids * 2};
    return batch;
  });
  const auto loader = [&](LoaderStart start) {
    return make_batch_loader(
        std::make_shared<Numbers>(), Sampler({.size = 12, .shuffle = false}), collator,
        [](int64_t consumed) {
          return BatchShape{consumed < 4 ? 2 : 4, 2, 1, 0};
        },
        start);
  };
  const auto whole = loader({});
  const auto first = whole->next(), second = whole->next();
  const auto resumed = loader({first->after, first->samples})->next();
  for (const auto* step : {&second, &resumed}) {
    ASSERT_EQ((*step)->microbatches.size(), 2U);
    EXPECT_TRUE((*step)->microbatches[1].extra("double", at::kCPU).equal(at::tensor({16, 18, 20, 22}, at::kLong)));
  }
}

}  // namespace
}  // namespace megalith::data
