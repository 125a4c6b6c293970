// The loss with the output projection inside, against logits in full and log_softmax.
#include "megalith/nn/tensor_parallel/linear_cross_entropy.h"

#include "megalith/nn/tensor_parallel/embedding.h"
#include "tests/nn/nn_support.h"
#include "tests/support/memory_meter.h"

namespace megalith::nn {
namespace {

constexpr int64_t kCrossEntropyTokens = 8, kCrossEntropyHidden = 6;

// loss = (1-s) nll - s mean log p + z (log Σ exp)²; 0 for ignored labels.
at::Tensor full_loss(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& labels,
                     const ops::CrossEntropyOptions& options) {
  const at::Tensor logits = x.mm(weight.t());
  const at::Tensor log_p = at::log_softmax(logits, -1);
  const double s = options.label_smoothing;
  const at::Tensor nll = -log_p.gather(1, labels.clamp_min(0).unsqueeze(1)).squeeze(1);
  at::Tensor loss = (1 - s) * nll - s * log_p.mean(1);
  if (options.z_loss != 0) loss = loss + options.z_loss * at::logsumexp(logits, {1}).pow(2);
  return loss.masked_fill(labels.eq(options.ignore_index), 0);
}

struct Problem {
  VocabSize vocab{7, 8};
  ops::CrossEntropyOptions options;
  at::Tensor x = random_tensor({kCrossEntropyTokens, kCrossEntropyHidden}, 1);
  at::Tensor dy = random_tensor({kCrossEntropyTokens}, 3);  // a different factor for each token
  at::Tensor labels;
  FullTensors weights;
  Expected expected;

  explicit Problem(ops::CrossEntropyOptions o = {}, VocabSize v = {7, 8}, std::optional<double> grad = std::nullopt)
      : vocab(v), options(o) {
    if (grad) dy.fill_(*grad);
    labels = random_ids(kCrossEntropyTokens, vocab.size, 2);
    labels[1] = options.ignore_index;
    labels[kCrossEntropyTokens - 1] = vocab.size - 1;
    weights["weight"] = random_tensor({vocab.size, kCrossEntropyHidden}, 4);
    expected = evaluate(
        [&](const at::Tensor& in, const FullTensors& w) { return full_loss(in, w.at("weight"), labels, options); }, x,
        weights, dy);
  }

  // `grad`: what every loss gets, told beforehand; unset when dy comes in backward.
  void run(int64_t chunk, bool main_grads, std::optional<double> grad = std::nullopt) const {
    SCOPED_TRACE("chunk " + std::to_string(chunk));
    run_all_layouts([&](const TensorParallel& tp) {
      ParameterSet set(at::kFloat, at::kCPU);
      const VocabParallelEmbedding head(ParameterScope(set), vocab, kCrossEntropyHidden, Init::zeros(), tp);
      load(set, weights);
      if (main_grads) attach_main_grads(set);
      const at::Tensor hidden = leaf(between_blocks(x, tp));
      const at::Tensor losses =
          linear_cross_entropy(hidden, head.weight(), labels, vocab_range(vocab, tp), tp, options, chunk, grad);
      EXPECT_EQ(losses.scalar_type(), at::kFloat);
      expect_close(losses, expected.y, "losses");
      losses.backward(dy);
      expect_close(hidden.grad(), between_blocks(expected.dx, tp), "gradient of the hidden states");
      expect_grads(set, expected.grads, tp);
    });
  }
};

TEST(LinearCrossEntropy, EqualsTheFullLossForEveryChunk) {
  const Problem problem;
  for (const int64_t chunk : {1, 3, 8, 1000}) problem.run(chunk, false);
}

TEST(LinearCrossEntropy, WritesIntoMainGrad) {
  const Problem problem;
  for (const int64_t chunk : {1, 3, 1000}) problem.run(chunk, true);
}

TEST(LinearCrossEntropy, MakesGradientsAtOnceWhenTheirStartIsKnown) {
  const Problem problem({.label_smoothing = 0.1, .z_loss = 0.01}, {7, 8}, 0.37);
  for (const int64_t chunk : {1, 3, 1000})
    for (const bool main_grads : {false, true}) problem.run(chunk, main_grads, 0.37);
}

TEST(LinearCrossEntropy, RefusesAnotherGradientThanItWasTold) {
  const Problem problem;
  run_tp({1, false}, [&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const VocabParallelEmbedding head(ParameterScope(set), problem.vocab, kCrossEntropyHidden, Init::zeros(), tp);
    load(set, problem.weights);
    const at::Tensor losses = linear_cross_entropy(leaf(problem.x), head.weight(), problem.labels,
                                                   vocab_range(problem.vocab, tp), tp, {}, 3, 0.5);
    expect_contains(message_of<InternalError>([&] { losses.backward(at::full_like(losses, 0.25)); }), "0.5");
  });
}

TEST(LinearCrossEntropy, SmoothsLabelsOverTheWholeVocabulary) {
  const Problem problem({.label_smoothing = 0.1});
  for (const int64_t chunk : {3, 1000}) problem.run(chunk, false);
}

TEST(LinearCrossEntropy, WithZLossAndAnotherIgnoreIndex) {
  const Problem problem({.ignore_index = -1, .label_smoothing = 0.05, .z_loss = 0.01});
  for (const int64_t chunk : {3, 1000}) problem.run(chunk, true);
}

// Ranks 1 to 3 of tp 4 hold padding alone.
TEST(LinearCrossEntropy, WithRanksThatHoldNothing) { Problem({}, {3, 12}).run(3, false); }

TEST(LinearCrossEntropy, MainGradAddsUpOverMicrobatches) {
  const Problem problem;
  run_all_layouts([&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const VocabParallelEmbedding head(ParameterScope(set), problem.vocab, kCrossEntropyHidden, Init::zeros(), tp);
    load(set, problem.weights);
    attach_main_grads(set);
    const at::Tensor hidden = leaf(between_blocks(problem.x, tp));
    for (int i = 0; i < 2; ++i)
      linear_cross_entropy(hidden, head.weight(), problem.labels, vocab_range(problem.vocab, tp), tp, {}, 3)
          .backward(problem.dy);
    expect_grads(set, {{"weight", problem.expected.grads.at("weight") * 2}}, tp);
  });
}

TEST(LinearCrossEntropy, OfAFrozenHead) {
  const Problem problem;
  run_all_layouts([&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const VocabParallelEmbedding head(ParameterScope(set), problem.vocab, kCrossEntropyHidden, Init::zeros(), tp);
    load(set, problem.weights);
    head.weight().value.requires_grad_(false);
    const at::Tensor hidden = leaf(between_blocks(problem.x, tp));
    linear_cross_entropy(hidden, head.weight(), problem.labels, vocab_range(problem.vocab, tp), tp, {}, 3)
        .backward(problem.dy);
    expect_close(hidden.grad(), between_blocks(problem.expected.dx, tp), "gradient of the hidden states");
    EXPECT_FALSE(head.weight().value.grad().defined());
  });
}

// Chunks of 24 tokens: rows of zeros fill the last one up to a multiple of 16.
TEST(LinearCrossEntropy, InFp8MultipliesRoundedFactors) {
  constexpr int64_t kTokens = 30, kHidden = 16, kVocab = 32, kChunk = 24;
  constexpr double kGrad = 0.25;
  using ops::Fp8Kind;
  const at::Tensor x = random_tensor({kTokens, kHidden}, 1), weight = random_tensor({kVocab, kHidden}, 2),
                   labels = random_ids(kTokens, kVocab, 3);
  const auto rounded = [](const at::Tensor& value, Fp8Kind kind, const at::Tensor& scale) {
    const auto rows = at::constant_pad_nd(value, {0, 0, 0, (16 - value.size(0) % 16) % 16});
    const ops::Fp8Matrix cast = ops::to_fp8(rows, {.kind = kind, .scale = scale});
    return ops::from_fp8(cast.rows, cast.inverse_scale).narrow(0, 0, value.size(0));
  };
  for (const bool told : {true, false})
    for (const bool weight_gradients : {true, false})
      for (const ops::Fp8Format format : {ops::Fp8Format::kHybrid, ops::Fp8Format::kE4m3}) {
        const ops::Fp8Recipe recipe{.format = format, .weight_gradients = weight_gradients};
        const at::Tensor scale = told ? at::full({1}, ops::reach_of(recipe.gradients()) / kGrad) : at::Tensor();
        std::vector<at::Tensor> losses, dx;
        at::Tensor dw = at::zeros_like(weight);
        const at::Tensor w8 = rounded(weight, Fp8Kind::kE4m3, {});
        for (int64_t first = 0; first < kTokens; first += kChunk) {
          const int64_t count = std::min(kChunk, kTokens - first);
          const at::Tensor part = x.narrow(0, first, count), x8 = rounded(part, Fp8Kind::kE4m3, {}),
                           target = labels.narrow(0, first, count).unsqueeze(1), logits = x8.mm(w8.t());
          losses.push_back(-at::log_softmax(logits, 1).gather(1, target).squeeze(1));
          at::Tensor dy = at::softmax(logits, 1);
          dy = kGrad * dy.scatter_add(1, target, at::full({count, 1}, -1.0));
          const at::Tensor dy8 = rounded(dy, recipe.gradients(), scale);
          dx.push_back(dy8.mm(w8));
          dw += weight_gradients ? dy8.t().mm(x8) : dy.t().mm(part);
        }
        ParameterSet set(at::kFloat, at::kCPU);
        run_tp({1, false}, [&](const TensorParallel& tp) {
          const VocabParallelEmbedding head(ParameterScope(set), {kVocab, kVocab}, kHidden, Init::zeros(), tp);
          load(set, {{"weight", weight}});
          attach_main_grads(set);
          const at::Tensor hidden = leaf(x);
          const at::Tensor actual =
              linear_cross_entropy(hidden, head.weight(), labels, vocab_range({kVocab, kVocab}, tp), tp, {}, kChunk,
                                   told ? std::optional(kGrad) : std::nullopt, recipe);
          expect_close(actual, at::cat(losses), "losses");
          actual.backward(at::full_like(actual, kGrad));
          expect_close(hidden.grad(), at::cat(dx), "gradient of the hidden states");
          expect_close(head.weight().grad.main_grad, dw, "gradient of the weight");
        });
      }
}

// The reason for it: never more logits than a chunk's at a time.
TEST(LinearCrossEntropy, NeverHoldsAllLogits) {
  run_tp({1, false}, [](const TensorParallel& tp) {
    constexpr int64_t tokens = 256, vocab = 512, chunk = 16;
    ParameterSet set(at::kFloat, at::kCPU);
    const VocabParallelEmbedding head(ParameterScope(set), {vocab, vocab}, kCrossEntropyHidden, Init::zeros(), tp);
    load(set, {{"weight", random_tensor({vocab, kCrossEntropyHidden}, 1)}});
    attach_main_grads(set);
    const at::Tensor hidden = leaf(random_tensor({tokens, kCrossEntropyHidden}, 2)),
                     labels = random_ids(tokens, vocab, 3);
    const testing::MemoryMeter meter;
    const at::Tensor losses =
        linear_cross_entropy(hidden, head.weight(), labels, vocab_range({vocab, vocab}, tp), tp, {}, chunk);
    losses.backward(at::ones_like(losses));
    // Two chunks of logits at most, beside gradients and losses that do not grow with the vocabulary.
    EXPECT_LT(meter.peak(), 2 * chunk * vocab * 4 + 8 * tokens * kCrossEntropyHidden * 4);
  });
}

TEST(LinearCrossEntropy, NamesLabelsThatAreNotInTheVocabulary) {
  const Problem problem;
  run_tp({2, false}, [&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const VocabParallelEmbedding head(ParameterScope(set), problem.vocab, kCrossEntropyHidden, Init::zeros(), tp);
    load(set, problem.weights);
    const at::Tensor labels = problem.labels.clone();
    labels[3] = 7;
    const std::string message = message_of<DataError>(
        [&] { linear_cross_entropy(problem.x, head.weight(), labels, vocab_range(problem.vocab, tp), tp, {}, 1000); });
    expect_contains(message, "7");
  });
}

}  // namespace
}  // namespace megalith::nn
