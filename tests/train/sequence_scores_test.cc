// Log-probabilities of sequences from token losses, on one rank and on two that share the tokens.
#include "megalith/train/preference/sequence_scores.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/run_ranks.h"

namespace megalith::train {
namespace {

// Two sequences of 3 and 2 tokens, and padding of 3 that makes a sequence of its own.
data::MicroBatch padded_batch() {
  data::MicroBatch batch;
  batch.layout = ops::SequenceLayout::packed({3, 2, 3});
  batch.sequences = 2;
  batch.labels = at::tensor({5, -100, 7, -100, -100, -100, -100, -100}, at::kLong);
  return batch;
}

TEST(SequenceScores, PaddingIsNotASequence) {
  testing::run_ranks(1, [](const testing::Rank& r) {
    const at::Tensor losses = at::tensor({1.0, 0.0, 2.0, 4.0, 0.5, 9.0, 9.0, 9.0}, at::kFloat);
    const at::Tensor scores = sequence_log_probabilities(losses, padded_batch(), r.world.world());
    EXPECT_TRUE(scores.equal(at::tensor({-3.0, -4.5}, at::kFloat)));
  });
}

TEST(SequenceScores, ASequenceWithoutLabelsCountsAsOneToken) {
  EXPECT_TRUE(labelled_tokens(padded_batch()).equal(at::tensor({2.0, 1.0}, at::kFloat)));
}

TEST(SequenceScores, RanksSumTheirSlicesAndKeepTheirGradients) {
  testing::run_ranks(2, [](const testing::Rank& r) {
    data::MicroBatch slice;
    slice.layout = ops::SequenceLayout::dense(2, 2);
    slice.sequences = 2;
    const at::Tensor losses = (at::arange(4, at::kFloat) + 10 * r.rank).requires_grad_();
    const at::Tensor scores = sequence_log_probabilities(losses, slice, r.world.world());
    EXPECT_TRUE(scores.detach().equal(at::tensor({-22.0, -30.0}, at::kFloat)));
    (scores * at::tensor({1.0, 2.0}, at::kFloat)).sum().backward();
    EXPECT_TRUE(losses.grad().equal(at::tensor({-1.0, -1.0, -2.0, -2.0}, at::kFloat)));
  });
}

// Pairs of answers with 3 and 1, and with 1 and 2 labels: the tokens beyond the shorter answer weigh less.
TEST(SequenceScores, LengthWeightsEndWithTheShorterAnswer) {
  testing::run_ranks(1, [](const testing::Rank& r) {
    const parallel::ParallelContext context(r.world, layout::RankGrid(layout::GridShape{}));
    data::MicroBatch pairs;
    pairs.preference = true;
    pairs.layout = ops::SequenceLayout::packed({4, 2, 2, 3, 2});
    pairs.sequences = 4;
    pairs.labels = at::tensor({-100, 1, 2, 3, 4, -100, -100, 5, -100, 6, 7, -100, -100}, at::kLong);
    const at::Tensor weights = length_weights(pairs, 0.25, context);
    EXPECT_TRUE(
        weights.equal(at::tensor({1.0, 1.0, 0.25, 0.25, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.25, 1.0, 1.0}, at::kFloat)))
        << weights;
    const at::Tensor losses = at::ones({13}, at::kFloat);
    const at::Tensor scores = sequence_log_probabilities(losses, pairs, r.world.world(), weights);
    EXPECT_TRUE(scores.equal(at::tensor({-2.5, -2.0, -2.0, -2.25}, at::kFloat))) << scores;
  });
}

}  // namespace
}  // namespace megalith::train
