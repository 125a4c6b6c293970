// Fields of samples: extra tensors of micro-batches by the built-in collator.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/data/collator.h"
#include "megalith/data/sample.h"
#include "megalith/data/token_table.h"
#include "tests/support/expect.h"

namespace megalith::data {
namespace {

using testing::expect_error;
using Floats = std::vector<float>;

// Token i has the id first + i, the weight first + i + 0.5 for its label, the kind -(first + i), and a pair of numbers;
// the row has a reward.
Sequence row_with_fields(int32_t first, int length) {
  Sequence row;
  Floats weights, pairs;
  std::vector<int64_t> kinds;
  for (int32_t id = first; id < first + length; ++id) {
    row.ids.push_back(id);
    row.labels.push_back(id);
    weights.push_back(static_cast<float>(id) + 0.5F);
    kinds.push_back(-id);
    pairs.insert(pairs.end(), {static_cast<float>(id), 1});
  }
  row.fields["weight"] = {.numbers = weights, .of = FieldOf::kLabel, .fill = 7};
  row.fields["kind"] = {.numbers = kinds, .of = FieldOf::kToken, .fill = -1};
  row.fields["pair"] = {.numbers = pairs, .of = FieldOf::kToken, .shape = {2}};
  row.fields["reward"] = {.numbers = Floats{static_cast<float>(first)}, .of = FieldOf::kRow};
  return row;
}

at::Tensor floats(const Floats& numbers) { return at::tensor(numbers, at::kFloat); }
at::Tensor values(const MicroBatch& batch, const char* name) { return batch.extra(name, at::kCPU); }

// Whatever the padding: a label has its weight beside it, a token its kind, and padding the fill.
void expect_in_place(const MicroBatch& batch) {
  const at::Tensor padded = batch.ids.eq(0), unlabelled = batch.labels.eq(kIgnoredLabel);
  EXPECT_TRUE(values(batch, "weight").equal((batch.labels.to(at::kFloat) + 0.5).masked_fill(unlabelled, 7)));
  EXPECT_TRUE(values(batch, "kind").equal((-batch.ids).masked_fill(padded, -1)));
  EXPECT_TRUE(values(batch, "pair").select(1, 0).equal(batch.ids.to(at::kFloat)));
  EXPECT_TRUE(values(batch, "pair").select(1, 1).equal(padded.logical_not().to(at::kFloat)));
}

TEST(ExtraFields, stand_beside_their_tokens_and_labels) {
  const std::vector<Sample> samples = {{row_with_fields(10, 4), {}}, {row_with_fields(20, 3), {}}};
  const MicroBatch batch = Collator({}).collate(samples);
  EXPECT_TRUE(values(batch, "weight").equal(floats({11.5, 12.5, 13.5, 21.5, 22.5, 7})));
  EXPECT_TRUE(values(batch, "kind").equal(at::tensor({-10, -11, -12, -20, -21, -1}, at::kLong)));
  EXPECT_EQ(values(batch, "pair").sizes(), (at::IntArrayRef{6, 2}));
  EXPECT_TRUE(values(batch, "reward").equal(floats({10, 20})));
  EXPECT_EQ(batch.extras.at("reward").of, ExtraOf::kRows);
  for (const Padding padding : {Padding::kLongest, Padding::kNone, Padding::kFixed})
    for (const int64_t cp : {1, 2, 4})
      for (const int64_t tp : {1, 3})
        expect_in_place(Collator({.padding = padding, .fixed_length = 9, .cp = cp, .tp = tp}).collate(samples));
  const MicroBatch bare = Collator({.cp = 2}).collate(samples, CollateParts::kLayoutOnly);
  EXPECT_EQ(values(bare, "weight").size(0), bare.tokens());  // on every pipeline stage
}

TEST(ExtraFields, follow_pieces_pairs_and_shifted_rows) {
  Sequence packed = row_with_fields(10, 8);
  packed.pieces = {3, 4};  // and one token of padding
  const MicroBatch pieces = Collator({}).collate(std::vector<Sample>{{packed, {}}});
  EXPECT_EQ(pieces.sequences, 2);
  EXPECT_TRUE(values(pieces, "weight").equal(floats({11.5, 12.5, 14.5, 15.5, 16.5})));
  EXPECT_TRUE(values(pieces, "reward").equal(floats({10})));
  const MicroBatch pairs = Collator({}).collate(std::vector<Sample>{{row_with_fields(10, 3), row_with_fields(20, 3)},
                                                                    {row_with_fields(30, 3), row_with_fields(40, 2)}});
  expect_in_place(pairs);
  EXPECT_TRUE(values(pairs, "reward").equal(floats({10, 30, 20, 40})));
  Sequence shifted = row_with_fields(10, 3);
  shifted.shifted = true;
  const MicroBatch as_it_is = Collator({}).collate(std::vector<Sample>{{shifted, {}}});
  EXPECT_TRUE(values(as_it_is, "weight").equal(floats({10.5, 11.5, 12.5})));
  const MicroBatch single = Collator({}).collate(std::vector<Sample>{{row_with_fields(10, 1), {}}});
  EXPECT_TRUE(values(single, "weight").equal(floats({7})));  // a label without a prediction
}

TEST(ExtraFields, that_do_not_fit_are_refused) {
  const auto refused = [](const std::function<void(Sequence&)>& change, const std::vector<std::string>& parts) {
    std::vector<Sample> samples = {{row_with_fields(10, 4), {}}, {row_with_fields(20, 3), {}}};
    change(samples[1].row);
    expect_error<DataError>([&] { Collator({}).collate(samples); }, parts);
  };
  refused(
      [](Sequence& row) {
        row.fields["weight"].numbers = Floats{1, 2};
      },
      {"field \"weight\" of row 1", "has 2 numbers; it must have 3"});
  refused(
      [](Sequence& row) {
        row.fields["pair"].numbers = Floats{1, 2, 3};
      },
      {"field \"pair\" of row 1", "has 3 numbers; it must have 6", "shape [2]"});
  refused([](Sequence& row) { row.fields["reward"].numbers = Floats{}; },
          {"field \"reward\" of row 1", "has 0 numbers; it must have 1"});
  refused([](Sequence& row) { row.fields.erase("kind"); },
          {"row 0 has kind, pair, reward, weight, row 1 has pair, reward, weight"});
  refused(
      [](Sequence& row) {
        row.fields["kind"].numbers = Floats{1, 2, 3};
      },
      {"field \"kind\" is int64", "and float", "in row 1; it must be the same in all"});
  refused([](Sequence& row) { row.fields["weight"].fill = 0; }, {"field \"weight\"", "fill 7", "fill 0"});
}

TEST(ExtraFields, are_not_lost_in_token_tables) {
  TokenTable table;
  expect_error<DataError>([&] { table.append(row_with_fields(10, 4)); }, {"do not hold fields such as \"kind\""});
}

TEST(ExtraTensors, that_are_missing_are_named) {
  const MicroBatch batch = Collator({}).collate(std::vector<Sample>{{row_with_fields(10, 4), {}}});
  expect_error<DataError>([&] { batch.extra("wieght", at::kCPU); },
                          {"no extra tensor \"wieght\"", "\"kind\", \"pair\", \"reward\", \"weight\""});
  const std::vector<std::string> names{"weight", "advantage"};
  expect_error<DataError>([&] { batch.require_extras(names); }, {"no extra tensor \"advantage\""});
  expect_error<DataError>([&] { MicroBatch().require_extras(names); }, {"no extra tensor \"weight\"; it has none"});
}

}  // namespace
}  // namespace megalith::data
