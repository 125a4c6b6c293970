#include "megalith/data/collator.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/data/dataset.h"
#include "megalith/data/token_table.h"
#include "tests/support/expect.h"

namespace megalith::data {
namespace {

// A row of ids first, first + 1, …; the first `prompt` have no label.
Sequence row(int32_t first, int length, int prompt = 0) {
  Sequence result;
  for (int i = 0; i < length; ++i) {
    result.ids.push_back(first + i);
    result.labels.push_back(i < prompt ? kIgnoredLabel : first + i);
  }
  return result;
}

// Pieces of these lengths, padded to `total`.
Sequence packed_row(const std::vector<int32_t>& pieces, size_t total, bool attend = false) {
  Sequence result;
  int32_t id = 1;
  for (const int32_t piece : pieces)
    for (int32_t i = 0; i < piece; ++i) {
      result.ids.push_back(id);
      result.labels.push_back(id++);
    }
  result.ids.resize(total, 0);
  result.labels.resize(total, kIgnoredLabel);
  result.pieces = pieces;
  result.pieces_attend = attend;
  return result;
}

std::vector<int64_t> values(const at::Tensor& tensor) {
  return {tensor.data_ptr<int64_t>(), tensor.data_ptr<int64_t>() + tensor.numel()};
}

using Values = std::vector<int64_t>;

TEST(Collator, shifts_and_pads_to_the_longest) {
  const std::vector<Sample> samples = {{row(10, 4, 2), {}}, {row(20, 3), {}}};
  const MicroBatch batch = Collator({.pad_id = 9}).collate(samples);
  EXPECT_EQ(values(batch.ids), (Values{10, 11, 12, 20, 21, 9}));
  EXPECT_EQ(values(batch.labels), (Values{-100, 12, 13, 21, 22, -100}));
  EXPECT_TRUE(batch.layout.uniform());
  EXPECT_EQ(batch.layout.sequences(), 2);
  EXPECT_EQ(batch.real_tokens, 5);
  EXPECT_EQ(batch.loss_tokens, 4);
  EXPECT_NEAR(batch.efficiency(), 5.0 / 6, 1e-12);
}

TEST(Collator, mismatched_answers_are_a_micro_batch_of_their_own) {
  std::vector<Sample> samples = {{row(10, 4, 2), {}}, {row(20, 3), {}}};
  samples[0].feedback = Feedback{true, row(30, 5, 2)};
  testing::expect_contains(testing::error_of<InternalError>([&] { Collator({.pad_id = 9}).collate(samples); }),
                           "with and without verdicts");
  samples[1].feedback = Feedback{false, row(40, 2)};
  for (Sample& sample : samples) sample.reference = ReferenceScores{-1, -2};
  const MicroBatch batch = Collator({.pad_id = 9}).collate(samples);
  EXPECT_EQ(values(batch.ids), (Values{10, 11, 12, 20, 21, 9}));
  EXPECT_TRUE(batch.desirable.equal(at::tensor({1, 0}, at::kInt).to(at::kBool)));
  EXPECT_FALSE(batch.preference);
  EXPECT_EQ(batch.sequences, 2);
  EXPECT_EQ(batch.reference.numel(), 4);
  ASSERT_NE(batch.mismatched, nullptr);
  EXPECT_EQ(values(batch.mismatched->ids), (Values{30, 31, 32, 33, 40, 9, 9, 9}));
  EXPECT_EQ(values(batch.mismatched->labels), (Values{-100, 32, 33, 34, 41, -100, -100, -100}));
  EXPECT_EQ(batch.mismatched->mismatched, nullptr);
  const MicroBatch layout = Collator({.pad_id = 9}).collate(samples, CollateParts::kLayoutOnly);
  EXPECT_FALSE(layout.mismatched->ids.defined());
  EXPECT_EQ(layout.mismatched->tokens(), 8);
}

TEST(Collator, multiples_and_fixed_lengths) {
  const std::vector<Sample> samples = {{row(10, 4), {}}, {row(20, 3), {}}};
  EXPECT_EQ(Collator({.length_multiple = 8}).collate(samples).layout.longest(), 8);
  EXPECT_EQ(Collator({.length_multiple = 8}).collate(samples).layout.max_position(), 3);
  EXPECT_EQ(Collator({.padding = Padding::kFixed, .fixed_length = 11}).collate(samples).layout.longest(), 11);
  EXPECT_EQ(Collator({.padding = Padding::kNone}).collate(samples).layout.cumulative(), (Values{0, 3, 5}));
  EXPECT_THROW(Collator({.padding = Padding::kFixed, .fixed_length = 2}).collate(samples), ConfigError);
}

TEST(Collator, pieces_of_a_row_do_not_see_one_another) {
  const std::vector<Sample> samples = {{packed_row({3, 4, 1}, 12), {}}};
  const MicroBatch batch = Collator({}).collate(samples);
  EXPECT_EQ(batch.layout.cumulative(), (Values{0, 2, 5}));
  EXPECT_EQ(values(batch.ids), (Values{1, 2, 4, 5, 6}));
  EXPECT_EQ(values(batch.labels), (Values{2, 3, 5, 6, 7}));
  EXPECT_EQ(values(batch.layout.positions(at::kCPU)), (Values{0, 1, 0, 1, 2}));
}

TEST(Collator, pieces_that_attend_are_one_sequence_with_restarting_positions) {
  const std::vector<Sample> samples = {{packed_row({3, 4}, 10, true), {}}};
  const MicroBatch batch = Collator({.length_multiple = 8}).collate(samples);
  EXPECT_EQ(batch.layout.cumulative(), (Values{0, 8}));
  EXPECT_EQ(values(batch.labels), (Values{2, 3, 4, 5, 6, 7, -100, -100}));
  EXPECT_EQ(values(batch.layout.positions(at::kCPU)), (Values{0, 1, 2, 0, 1, 2, 0, 0}));
}

// Rows with coordinates beside a row of text; the last token of a piece is a label alone.
TEST(Collator, coordinates_stand_as_the_tokens_do) {
  Sequence seen = packed_row({3, 4}, 7);
  for (int i = 0; i < 21; ++i) seen.coordinates.push_back(static_cast<float>(i) + 0.5F);
  const std::vector<Sample> samples = {{seen, {}}, {row(20, 3), {}}};
  const MicroBatch batch = Collator({.cp = 2}).collate(samples);  // sequences are padded to multiples of 4
  EXPECT_EQ(batch.layout.cumulative(), (Values{0, 4, 8, 12}));
  const at::Tensor coordinates = batch.layout.coordinates(at::kCPU);
  const std::vector<float> time{0.5, 1.5, 0, 0, 3.5, 4.5, 5.5, 0, 0, 1, 2, 3};
  const std::vector<float> width{14.5, 15.5, 0, 0, 17.5, 18.5, 19.5, 0, 0, 1, 2, 3};
  EXPECT_TRUE(coordinates[0].equal(at::tensor(time)));
  EXPECT_TRUE(coordinates[2].equal(at::tensor(width)));
  EXPECT_TRUE(Collator({.cp = 2}).collate(samples, CollateParts::kLayoutOnly).layout.has_coordinates());
  EXPECT_FALSE(Collator({}).collate(std::vector<Sample>{{row(20, 3), {}}}).layout.has_coordinates());
  seen.coordinates.pop_back();
  EXPECT_THROW(Collator({}).collate(std::vector<Sample>{{seen, {}}}), InternalError);
  EXPECT_THROW(TokenTable().append(Sample{seen, {}}), DataError);
}

TEST(Collator, reference_scores_stand_as_the_rows_do) {
  TokenTable table;
  for (const int32_t first : {10, 20}) table.append(Sample{row(first, 4), row(first + 100, 3)});
  const auto pairs = with_reference_scores(dataset_of(std::move(table), {.pairs = true}), {{-1, -2}, {-3, -4}});
  const std::vector<Sample> samples{pairs->sample(0), pairs->sample(1)};
  EXPECT_EQ(values(Collator({}).collate(samples).reference.to(at::kLong)), (Values{-1, -3, -2, -4}));
  EXPECT_EQ(values(Collator({}).collate(samples, CollateParts::kLayoutOnly).reference.to(at::kLong)).size(), 4u);
  EXPECT_FALSE(Collator({}).collate(std::vector<Sample>{{row(1, 3), row(2, 3)}}).reference.defined());
  EXPECT_THROW(with_reference_scores(pairs, {{-1, -2}}), InternalError);
}

TEST(Collator, rows_that_are_shifted_keep_every_token) {
  Sequence whole{.ids = {1, 2, 3, 4}, .labels = {2, -100, 4, 5}, .shifted = true};
  EXPECT_EQ(values(Collator({}).collate(std::vector<Sample>{{whole, {}}}).labels), (Values{2, -100, 4, 5}));
  whole.pieces = {1, 3};
  const MicroBatch parts = Collator({}).collate(std::vector<Sample>{{whole, {}}});
  EXPECT_EQ(parts.layout.cumulative(), (Values{0, 1, 4}));
  EXPECT_EQ(values(parts.ids), (Values{1, 2, 3, 4}));
  EXPECT_EQ(values(parts.labels), (Values{2, -100, 4, 5}));
}

TEST(Collator, alignment_holds_for_every_cp_and_tp) {
  const std::vector<std::vector<Sample>> cases = {{{row(10, 7), {}}, {row(20, 3), {}}},
                                                  {{packed_row({3, 4, 6}, 16), {}}, {packed_row({5, 2}, 16), {}}},
                                                  {{row(10, 1), {}}}};
  for (const auto& samples : cases)
    for (const Padding padding : {Padding::kLongest, Padding::kNone, Padding::kFixed})
      for (int64_t cp = 1; cp <= 4; ++cp)
        for (const int64_t tp : {1, 2, 3, 8}) {
          const Collator collator({.padding = padding, .fixed_length = 15, .cp = cp, .tp = tp});
          const MicroBatch batch = collator.collate(samples);
          const auto& ends = batch.layout.cumulative();
          for (size_t s = 0; s + 1 < ends.size(); ++s) ASSERT_EQ((ends[s + 1] - ends[s]) % (cp > 1 ? 2 * cp : 1), 0);
          ASSERT_EQ(batch.tokens() % (cp * tp), 0);
          ASSERT_EQ((batch.labels != kIgnoredLabel).sum().item<int64_t>(), batch.loss_tokens);
          // Padding changes neither tokens nor labels.
          const MicroBatch plain = Collator({.padding = padding, .fixed_length = 15}).collate(samples);
          ASSERT_EQ(batch.loss_tokens, plain.loss_tokens);
          ASSERT_EQ(batch.real_tokens, plain.real_tokens);
          ASSERT_TRUE(batch.labels.masked_select(batch.labels != kIgnoredLabel)
                          .equal(plain.labels.masked_select(plain.labels != kIgnoredLabel)));
          // A stage without tokens knows the same layout.
          const MicroBatch bare = collator.collate(samples, CollateParts::kLayoutOnly);
          ASSERT_FALSE(bare.ids.defined());
          ASSERT_EQ(bare.layout.cumulative(), ends);
          ASSERT_EQ(bare.loss_tokens, batch.loss_tokens);
        }
}

TEST(Collator, chosen_rows_then_rejected_rows) {
  const std::vector<Sample> samples = {{row(10, 3, 1), row(20, 4, 1)}, {row(30, 3, 1), row(40, 3, 1)}};
  const MicroBatch batch = Collator({}).collate(samples);
  EXPECT_TRUE(batch.preference);
  EXPECT_EQ(batch.samples, 2);
  EXPECT_EQ(batch.sequences, 4);
  EXPECT_EQ(values(batch.ids), (Values{10, 11, 0, 30, 31, 0, 20, 21, 22, 40, 41, 0}));
  EXPECT_EQ(values(batch.labels), (Values{11, 12, -100, 31, 32, -100, 21, 22, 23, 41, 42, -100}));
}

}  // namespace
}  // namespace megalith::data
