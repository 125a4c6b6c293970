// The embedding whose vocabulary is split, against a lookup in the full table.
#include "megalith/nn/tensor_parallel/embedding.h"

#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

constexpr int64_t kEmbeddingTokens = 8, kEmbeddingHidden = 6;

at::Tensor lookup(const at::Tensor& ids, const FullTensors& w) { return w.at("weight").index_select(0, ids); }

// A vocabulary of `size` ids padded to `padded` rows.
void test_embedding(const VocabSize& vocab, const std::function<void(ParameterSet&)>& before = {}) {
  const at::Tensor ids =
      at::cat({random_ids(kEmbeddingTokens - 2, vocab.size, 1), at::tensor({vocab.size - 1, int64_t{0}})});
  const FullTensors weights{{"weight", random_tensor({vocab.size, kEmbeddingHidden}, 2)}};
  const at::Tensor dy = random_tensor({kEmbeddingTokens, kEmbeddingHidden}, 3);
  const Expected expected = evaluate(lookup, ids, weights, dy);
  run_all_layouts([&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const VocabParallelEmbedding embedding(ParameterScope(set), vocab, kEmbeddingHidden, Init::zeros(), tp);
    EXPECT_EQ(embedding.weight().value.size(0), vocab.padded / tp.size());
    EXPECT_TRUE(embedding.weight().spec.is_embedding_or_head);
    load(set, weights);
    if (before) before(set);
    const at::Tensor y = embedding.forward(ids);
    expect_identical(y, between_blocks(expected.y.to(at::kFloat), tp), "output");
    y.backward(between_blocks(dy, tp));
    expect_grads(set, expected.grads, tp);
  });
}

TEST(VocabParallelEmbedding, EqualsTheFullTable) { test_embedding({16, 16}); }
TEST(VocabParallelEmbedding, OfAVocabularyThatDoesNotDivide) { test_embedding({7, 8}); }
// The last ranks of tp 4 hold padding alone.
TEST(VocabParallelEmbedding, WithRanksThatHoldNothing) { test_embedding({3, 12}); }
TEST(VocabParallelEmbedding, WritesIntoMainGrad) { test_embedding({7, 8}, attach_main_grads); }

TEST(VocabParallelEmbedding, AddsToMainGrad) {
  run_all_layouts([](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const VocabParallelEmbedding embedding(ParameterScope(set), {7, 8}, kEmbeddingHidden, Init::zeros(), tp);
    load(set, {{"weight", whole_numbers({7, kEmbeddingHidden}, 1)}});
    attach_main_grads(set);
    at::Tensor sum = at::zeros({7, kEmbeddingHidden});
    for (uint64_t i = 0; i < 2; ++i) {
      const at::Tensor ids = random_ids(kEmbeddingTokens, 7, 5 + i),
                       dy = whole_numbers({kEmbeddingTokens, kEmbeddingHidden}, 7 + i);
      embedding.forward(ids).backward(between_blocks(dy, tp));
      sum.index_add_(0, ids, dy);
    }
    expect_grads(set, {{"weight", sum}}, tp, 0);
    EXPECT_FALSE(embedding.weight().value.grad().defined());
  });
}

TEST(VocabParallelEmbedding, OfBf16) {
  run_all_layouts([](const TensorParallel& tp) {
    ParameterSet set(at::kBFloat16, at::kCPU);
    const VocabParallelEmbedding embedding(ParameterScope(set), {7, 8}, kEmbeddingHidden, Init::zeros(), tp);
    const at::Tensor full = random_tensor({7, kEmbeddingHidden}, 1).to(at::kBFloat16),
                     ids = random_ids(kEmbeddingTokens, 7, 2);
    load(set, {{"weight", full}});
    attach_main_grads(set);
    const at::Tensor y = embedding.forward(ids);
    expect_identical(y, between_blocks(full.index_select(0, ids), tp), "output");
    const at::Tensor dy = whole_numbers({kEmbeddingTokens, kEmbeddingHidden}, 3);
    y.backward(between_blocks(dy, tp).to(at::kBFloat16));
    expect_grads(set, {{"weight", at::zeros({7, kEmbeddingHidden}).index_add_(0, ids, dy)}}, tp, 0);
  });
}

TEST(VocabParallelEmbedding, NamesIdsThatAreNotInTheVocabulary) {
  run_all_layouts([](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const VocabParallelEmbedding embedding(ParameterScope(set), {7, 8}, kEmbeddingHidden, Init::zeros(), tp);
    for (const int64_t bad : {7, 8, 1000, -1, -100}) {  // 7: a padding row
      const at::Tensor ids = at::tensor({int64_t{0}, bad, int64_t{6}, int64_t{1}});
      const std::string message = message_of<DataError>([&] { embedding.forward(ids); });
      expect_contains(message, "token id " + std::to_string(bad) + " is not in the vocabulary of 7 ids");
    }
  });
}

TEST(VocabParallelEmbedding, VocabRangesCoverTheVocabularyOnce) {
  for (const VocabSize vocab : {VocabSize{7, 8}, VocabSize{3, 12}, VocabSize{16, 16}})
    run_tp({4, false}, [&](const TensorParallel& tp) {
      const auto range = vocab_range(vocab, tp);
      EXPECT_EQ(range.total, vocab.size);
      at::Tensor held = at::zeros({vocab.size}, at::kLong);
      held.slice(0, range.begin, range.end).add_(1);
      tp.group.all_reduce(held);
      EXPECT_TRUE(held.eq(1).all().item<bool>());
    });
}

}  // namespace
}  // namespace megalith::nn
