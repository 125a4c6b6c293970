// Dropout under tensor parallelism: other masks where ranks hold different things, the same where they hold the same.
#include "megalith/ops/norm_rope/dropout.h"
#include "megalith/nn/attention/self_attention.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

constexpr int64_t kDropoutTokens = 16, kDropoutHidden = 8, kDropoutDim = 8;

// All ranks' tensors, stacked.
std::vector<at::Tensor> from_all(const at::Tensor& own, const TensorParallel& tp) {
  at::Tensor all = at::empty({tp.size(), own.numel()}, own.options());
  tp.group.all_gather(all, own.contiguous());
  return all.unbind(0);
}
void expect_all_different(const at::Tensor& own, const TensorParallel& tp, const char* what) {
  const auto all = from_all(own, tp);
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t j = i + 1; j < all.size(); ++j)
      EXPECT_FALSE(at::equal(all[i], all[j])) << what << " on ranks " << i << " and " << j;
}
void expect_all_same(const at::Tensor& own, const TensorParallel& tp, const char* what) {
  for (const at::Tensor& other : from_all(own, tp)) EXPECT_TRUE(at::equal(other, own.reshape({-1}))) << what;
}

// Every head has the same weights: whatever differs between ranks comes from dropout.
struct EqualHeads {
  ParameterSet set{at::kFloat, at::kCPU};
  parallel::RngTracker rng;
  SelfAttention attention;

  EqualHeads(const TensorParallel& tp, int64_t kv_heads, double dropout)
      : attention(
            ParameterScope(set),
            {.hidden = kDropoutHidden, .heads = 4, .kv_heads = kv_heads, .head_dim = kDropoutDim, .dropout = dropout},
            0, tp, rng, false) {
    const at::Tensor head = random_tensor({kDropoutDim, kDropoutHidden}, 1);
    load(set, {{"q.weight", head.repeat({4, 1})},
               {"k.weight", head.repeat({kv_heads, 1})},
               {"v.weight", head.repeat({kv_heads, 1})},
               {"o.weight", head.t().repeat({1, 4})}});
    seed_streams(rng, 5, tp);
  }

  // The gradient of the own query heads, and the output.
  std::pair<at::Tensor, at::Tensor> run(const TensorParallel& tp, bool training = true) {
    const LayerInput input{.layout = ops::SequenceLayout::dense(1, kDropoutTokens), .angles = {}, .training = training};
    const at::Tensor x = between_blocks(random_tensor({kDropoutTokens, kDropoutHidden}, 2), tp);
    set.find("qkv.weight")->value.mutable_grad() = at::Tensor();
    const at::Tensor y = attention.forward(x, {}, input);
    y.backward(between_blocks(random_tensor({kDropoutTokens, kDropoutHidden}, 3), tp));
    return {set.find("qkv.weight")->value.grad().narrow(0, 0, 4 / tp.size() * kDropoutDim), y};
  }
};

TEST(AttentionDropout, DiffersOverTheRanksHeads) {
  for (const bool sequence_parallel : {false, true})
    for (const int tp_size : {2, 4})
      for (const int64_t kv_heads : {4, 1})
        run_tp({tp_size, sequence_parallel}, [&](const TensorParallel& tp) {
          EqualHeads with(tp, kv_heads, 0.2), without(tp, kv_heads, 0);
          expect_all_same(without.run(tp).first, tp, "gradient of equal heads without dropout");
          const auto [grad, y] = with.run(tp);
          expect_all_different(grad, tp, "gradient of equal heads with dropout");
          if (!sequence_parallel) expect_all_same(y, tp, "the sum over all heads");
        });
}

TEST(AttentionDropout, IsOffOutsideTraining) {
  run_tp({2, false}, [](const TensorParallel& tp) {
    EqualHeads with(tp, 4, 0.2), without(tp, 4, 0);
    const std::string before = with.rng.save();
    expect_identical(with.run(tp, false).second, without.run(tp, false).second, "output");
    EXPECT_EQ(with.rng.save(), before);
  });
}

TEST(AttentionDropout, RepeatsFromSavedStreams) {
  run_all_layouts([](const TensorParallel& tp) {
    EqualHeads layer(tp, 4, 0.2);
    layer.run(tp);
    const std::string saved = layer.rng.save();
    const auto [grad, y] = layer.run(tp);
    EXPECT_FALSE(at::equal(layer.run(tp).second, y));  // continues
    EqualHeads restarted(tp, 4, 0.2);
    restarted.rng.restore(saved);
    const auto [grad_again, y_again] = restarted.run(tp);
    expect_identical(y_again, y, "output");
    expect_identical(grad_again, grad, "gradient");
  });
}

// The way of the residual stream: forked where tokens are split.
TEST(ResidualDropout, AgreesOnWholeTokensAndDiffersOnSplitOnes) {
  for (const Layout& layout : all_layouts()) {
    if (layout.tp == 1) continue;
    run_tp(layout, [&](const TensorParallel& tp) {
      parallel::RngTracker rng;
      seed_streams(rng, 5, tp);
      const at::Tensor x =
          at::ones({kDropoutTokens, kDropoutHidden});  // the same tokens on all: only the masks can differ
      const std::string saved = rng.save();
      const auto drop = [&] {
        const auto fork = rng.fork_if(tp.splits_tokens());
        return ops::dropout(x, 0.1, rng.generator());
      };
      const at::Tensor first = drop(), second = drop();
      EXPECT_FALSE(at::equal(first, second));
      if (tp.splits_tokens()) expect_all_different(first, tp, "mask");
      if (!tp.splits_tokens()) expect_all_same(first, tp, "mask");
      rng.restore(saved);
      expect_identical(drop(), first, "first mask again");
      expect_identical(drop(), second, "second mask again");
    });
  }
}

}  // namespace
}  // namespace megalith::nn
