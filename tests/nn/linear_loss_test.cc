// A projection with a loss of the caller's own: half the sum of squared logits, against logits in full.
#include "megalith/nn/tensor_parallel/linear_loss.h"

#include "megalith/nn/tensor_parallel/embedding.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

constexpr int64_t kLossTokens = 8, kLossHidden = 6;
constexpr double kStart = 0.37;

struct SquaredLogits {
  VocabSize vocab{7, 8};
  at::Tensor x = random_tensor({kLossTokens, kLossHidden}, 1);
  FullTensors weights{{"weight", random_tensor({7, kLossHidden}, 4)}};
  Expected expected = evaluate(
      [](const at::Tensor& in, const FullTensors& w) { return in.mm(w.at("weight").t()).square().sum(1) * 0.5; }, x,
      weights, at::full({kLossTokens}, kStart));

  static SliceLoss loss(const ops::VocabRange& range, const TensorParallel& tp, std::vector<int64_t>& firsts) {
    return [=, &firsts](const at::Tensor& logits, int64_t first, bool wants_grad) {
      const int64_t held = range.end - range.begin;
      const at::Tensor values = logits.narrow(1, 0, held).square().sum(1) * 0.5;
      tp.group.all_reduce(values, comm::ReduceOp::kSum, "squares");
      if (wants_grad) logits.mul_(kStart).narrow(1, held, logits.size(1) - held).zero_();
      firsts.push_back(first);
      return values;
    };
  }

  void run(int64_t chunk, bool main_grads) const {
    SCOPED_TRACE("chunk " + std::to_string(chunk));
    run_all_layouts([&](const TensorParallel& tp) {
      ParameterSet set(at::kFloat, at::kCPU);
      const VocabParallelEmbedding head(ParameterScope(set), vocab, kLossHidden, Init::zeros(), tp);
      load(set, weights);
      if (main_grads) attach_main_grads(set);
      const at::Tensor hidden = leaf(between_blocks(x, tp));
      std::vector<int64_t> firsts;
      const LinearLoss how{.weight = &head.weight(), .tp = tp, .chunk = chunk, .grad = kStart};
      const at::Tensor losses = linear_loss(hidden, how, loss(vocab_range(vocab, tp), tp, firsts));
      EXPECT_EQ(static_cast<int64_t>(firsts.size()), (kLossTokens + chunk - 1) / chunk);
      EXPECT_EQ(firsts.back(), (kLossTokens - 1) / chunk * chunk);
      expect_close(losses, expected.y, "losses");
      losses.backward(at::full_like(losses, kStart));
      expect_close(hidden.grad(), between_blocks(expected.dx, tp), "gradient of the hidden states");
      expect_grads(set, expected.grads, tp);
    });
  }
};

TEST(LinearLoss, EqualsTheFullLossForEveryChunk) {
  const SquaredLogits problem;
  for (const int64_t chunk : {1, 3, 8, 1000})
    for (const bool main_grads : {false, true}) problem.run(chunk, main_grads);
}

TEST(LinearLoss, LeavesGradientsAloneWithoutAutograd) {
  const SquaredLogits problem;
  run_tp({1, false}, [&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const VocabParallelEmbedding head(ParameterScope(set), problem.vocab, kLossHidden, Init::zeros(), tp);
    load(set, problem.weights);
    attach_main_grads(set);
    const at::NoGradGuard no_grad;
    std::vector<int64_t> firsts;
    const LinearLoss how{.weight = &head.weight(), .tp = tp, .chunk = 3, .grad = kStart};
    const at::Tensor losses = linear_loss(problem.x, how, problem.loss(vocab_range(problem.vocab, tp), tp, firsts));
    expect_close(losses, problem.expected.y, "losses");
    EXPECT_TRUE(head.weight().grad.main_grad.isnan().all().item<bool>());  // untouched
  });
}

TEST(LinearLoss, RefusesAnotherGradientThanItWasTold) {
  const SquaredLogits problem;
  run_tp({1, false}, [&](const TensorParallel& tp) {
    ParameterSet set(at::kFloat, at::kCPU);
    const VocabParallelEmbedding head(ParameterScope(set), problem.vocab, kLossHidden, Init::zeros(), tp);
    load(set, problem.weights);
    std::vector<int64_t> firsts;
    const LinearLoss how{.weight = &head.weight(), .tp = tp, .chunk = 3, .grad = kStart};
    const at::Tensor losses =
        linear_loss(leaf(problem.x), how, problem.loss(vocab_range(problem.vocab, tp), tp, firsts));
    expect_contains(testing::error_of<InternalError>([&] { losses.backward(at::full_like(losses, 0.25)); }), "0.37");
  });
}

}  // namespace
}  // namespace megalith::nn
