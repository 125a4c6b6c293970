// Recomputation: the same bits with and without, less memory in between.
#include "megalith/nn/recompute.h"

#include "megalith/nn/attention/self_attention.h"
#include "megalith/nn/mlp.h"
#include "megalith/nn/norm.h"
#include "megalith/ops/norm_rope/dropout.h"
#include "tests/nn/nn_support.h"
#include "tests/support/memory_meter.h"

namespace megalith::nn {
namespace {

constexpr int64_t kRecomputeTokens = 8, kRecomputeHidden = 6, kRecomputeWidth = 12;

using Fn = std::function<at::Tensor(const TensorList&)>;

// An MLP between two dropouts, one of the default stream and one of the forked one.
class Block {
 public:
  explicit Block(const TensorParallel& tp)
      : mlp_(ParameterScope(set_), {.hidden = kRecomputeHidden, .width = kRecomputeWidth}, tp) {
    load(set_, {{"gate.weight", random_tensor({kRecomputeWidth, kRecomputeHidden}, 1, 0.4)},
                {"up.weight", random_tensor({kRecomputeWidth, kRecomputeHidden}, 2, 0.4)},
                {"down.weight", random_tensor({kRecomputeHidden, kRecomputeWidth}, 3, 0.4)}});
    seed_streams(rng_, 7, tp);
  }

  Fn fn() {
    return [this](const TensorList& in) {
      at::Tensor x = in[0];
      {
        const auto fork = rng_.fork();
        x = ops::dropout(x, 0.3, rng_.generator());
      }
      x = mlp_.forward(x, in.size() > 1 ? in[1] : at::Tensor());
      return ops::dropout(x, 0.3, rng_.generator());
    };
  }
  parallel::RngTracker& rng() { return rng_; }
  const ParameterSet& set() const { return set_; }
  void zero_grad() const {
    for (const auto& parameter : set_.all()) parameter->value.mutable_grad() = at::Tensor();
  }

 private:
  ParameterSet set_{at::kFloat, at::kCPU};
  parallel::RngTracker rng_;
  Mlp mlp_;
};

struct Outcome {
  at::Tensor y;
  std::vector<at::Tensor> grads;  // gradients of inputs and parameters
  std::string rng_after_forward, rng_after_backward;
};

// Runs `layer` twice in a row (once: `count` 1) and back; streams start at the same place each time.
// Not more often: the layers share their weights, and two gradients have the same sum in any order, three do not.
Outcome run(Block& block, const TensorParallel& tp, const std::function<at::Tensor(const TensorList&)>& layer,
            const TensorList& inputs, int count = 2) {
  seed_streams(block.rng(), 7, tp);
  block.zero_grad();
  TensorList leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(leaf(input));
  Outcome out;
  TensorList next = leaves;
  for (int i = 0; i < count; ++i) next[0] = out.y = layer(next);
  out.rng_after_forward = block.rng().save();
  out.y.backward(random_tensor(out.y.sizes(), 11));
  out.rng_after_backward = block.rng().save();
  for (const at::Tensor& input : leaves) out.grads.push_back(input.grad());
  for (const auto& parameter : block.set().all()) out.grads.push_back(parameter->value.grad());
  return out;
}

void expect_same(const Outcome& actual, const Outcome& expected) {
  expect_identical(actual.y, expected.y, "output");
  ASSERT_EQ(actual.grads.size(), expected.grads.size());
  for (size_t i = 0; i < actual.grads.size(); ++i)
    expect_identical(actual.grads[i], expected.grads[i], "gradient " + std::to_string(i));
  EXPECT_EQ(actual.rng_after_forward, expected.rng_after_forward);
  EXPECT_EQ(actual.rng_after_backward, expected.rng_after_backward);
}

TEST(Recompute, GivesTheSameBits) {
  run_all_layouts([](const TensorParallel& tp) {
    Block block(tp);
    const TensorList inputs{between_blocks(random_tensor({kRecomputeTokens, kRecomputeHidden}, 4), tp),
                            between_blocks(random_tensor({kRecomputeTokens, kRecomputeHidden}, 5), tp)};
    const Fn fn = block.fn();
    const Outcome kept = run(block, tp, fn, inputs);
    EXPECT_GT(kept.y.eq(0).sum().item<int64_t>(), 0);  // dropout was there
    const auto recomputed = [&](const TensorList& in) { return recompute(fn, in, &block.rng()); };
    expect_same(run(block, tp, recomputed, inputs), kept);
    const auto nested = [&](const TensorList& in) {
      return recompute([&](const TensorList& i) { return recompute(fn, i, &block.rng()); }, in, &block.rng());
    };
    expect_same(run(block, tp, nested, inputs), kept);
    // Two layers in one region.
    const auto pair = [&](const TensorList& in) { return fn({fn(in), in[1]}); };
    const auto pair_recomputed = [&](const TensorList& in) { return recompute(pair, in, &block.rng()); };
    expect_same(run(block, tp, pair_recomputed, inputs, 1), run(block, tp, pair, inputs, 1));
  });
}

TEST(Recompute, WithInputsSplitOverRanksGivesTheSameBits) {
  for (const int tp_size : {1, 2, 4})
    run_tp({tp_size, false}, [](const TensorParallel& tp) {
      Block block(tp);
      const Fn fn = block.fn();
      const auto split = [&](const TensorList& in) {
        return recompute(fn, in, &block.rng(), {.split_over = &tp.group});
      };
      for (const int64_t tokens : {8, 7}) {  // 7: cannot be split, is kept whole
        const TensorList inputs{random_tensor({tokens, kRecomputeHidden}, 4),
                                random_tensor({tokens, kRecomputeHidden}, 5)};
        expect_same(run(block, tp, split, inputs), run(block, tp, fn, inputs));
      }
    });
}

// Without the saved streams the masks would differ: the test above can fail.
TEST(Recompute, NeedsTheStreamsOfTheForwardPass) {
  run_tp({1, false}, [](const TensorParallel& tp) {
    Block block(tp);
    const Fn fn = block.fn();
    const TensorList inputs{random_tensor({kRecomputeTokens, kRecomputeHidden}, 4)};
    const Outcome kept = run(block, tp, fn, inputs);
    const auto without = [&](const TensorList& in) { return recompute(fn, in, nullptr); };
    EXPECT_FALSE(at::equal(run(block, tp, without, inputs).grads[0], kept.grads[0]));
  });
}

// After a frozen embedding no input needs a gradient; the parameters inside do.
TEST(Recompute, TrainsParametersBehindInputsWithoutGradients) {
  run_all_layouts([](const TensorParallel& tp) {
    Block block(tp);
    const Fn fn = block.fn();
    const at::Tensor x = between_blocks(random_tensor({kRecomputeTokens, kRecomputeHidden}, 4), tp).clone();
    std::vector<at::Tensor> grads[2];
    for (const bool again : {false, true}) {
      seed_streams(block.rng(), 7, tp);
      block.zero_grad();
      const at::Tensor y = again ? recompute(fn, {x}, &block.rng()) : fn({x});
      ASSERT_TRUE(y.requires_grad());
      y.backward(at::ones_like(y));
      for (const auto& parameter : block.set().all()) grads[again].push_back(parameter->value.grad());
    }
    for (size_t i = 0; i < grads[0].size(); ++i) expect_identical(grads[1][i], grads[0][i], "gradient");
    EXPECT_FALSE(x.grad().defined());
  });
}

TEST(Recompute, GivesGradientsToThoseInputsThatNeedThem) {
  int calls = 0;
  const Fn product = [&](const TensorList& in) {
    ++calls;
    return in[0] * in[1] + in[2];
  };
  const at::Tensor a = leaf(random_tensor({3}, 1)), b = random_tensor({3}, 2), c = leaf(random_tensor({3}, 3));
  const at::Tensor y = recompute(product, {a, b, c}, nullptr);
  EXPECT_EQ(calls, 1);
  y.backward(at::ones({3}));
  EXPECT_EQ(calls, 2);
  expect_identical(a.grad(), b, "gradient of a");
  expect_identical(c.grad(), at::ones({3}), "gradient of c");
  EXPECT_FALSE(b.grad().defined());
}

TEST(Recompute, OfSomethingWithoutGradientsIsAPlainCall) {
  const at::Tensor x = random_tensor({3}, 1);
  const Fn twice = [](const TensorList& in) { return in[0] * 2; };
  const at::Tensor plain = recompute(twice, {x}, nullptr);
  expect_identical(plain, x * 2, "output");
  if (plain.requires_grad()) plain.backward(at::ones({3}));  // harmless where it was recorded
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(recompute(twice, {leaf(x)}, nullptr).requires_grad());
}

TEST(Recompute, RefusesTooManyInputs) {
  const TensorList inputs(5, at::ones({1}));
  expect_contains(
      message_of<InternalError>([&] { recompute([](const TensorList& in) { return in[0]; }, inputs, nullptr); }),
      "one to four inputs, not 5");
}

// Memory between forward and backward.
TEST(Recompute, KeepsTheInputsAlone) {
  run_tp({2, false}, [](const TensorParallel& tp) {
    constexpr int64_t n = 64 * 1024;
    const Fn deep = [](const TensorList& in) {
      at::Tensor x = in[0];
      for (int i = 0; i < 10; ++i) x = x.sin();
      return x;
    };
    const at::Tensor source = leaf(random_tensor({n}, 1));
    const auto held = [&](const std::function<at::Tensor(const at::Tensor&)>& f) {
      const testing::MemoryMeter meter;
      const at::Tensor y = f(source * 2);  // an input of its own
      return static_cast<double>(meter.current()) / (n * sizeof(float));
    };
    const double all = held([&](const at::Tensor& x) { return deep({x}); });
    const double inputs = held([&](const at::Tensor& x) { return recompute(deep, {x}, nullptr); });
    const double shares =
        held([&](const at::Tensor& x) { return recompute(deep, {x}, nullptr, {.split_over = &tp.group}); });
    EXPECT_NEAR(all, 11, 0.1);      // input and ten results
    EXPECT_NEAR(inputs, 2, 0.1);    // input and result
    EXPECT_NEAR(shares, 1.5, 0.1);  // half of the input and result
  });
}

// Selective recomputation of the core of attention, dropout included.
TEST(Recompute, OfCoreAttentionGivesTheSameBits) {
  for (const double dropout : {0.0, 0.2})
    run_all_layouts([&](const TensorParallel& tp) {
      const AttentionShape shape{
          .hidden = kRecomputeHidden, .heads = 4, .kv_heads = 2, .head_dim = 8, .window = 5, .dropout = dropout};
      const LayerInput input{.layout = ops::SequenceLayout::packed({5, 3}), .angles = {}};
      at::Tensor y[2];
      std::vector<at::Tensor> grads[2];
      for (const bool again : {false, true}) {
        ParameterSet set(at::kFloat, at::kCPU);
        parallel::RngTracker rng;
        seed_streams(rng, 3, tp);
        const SelfAttention attention(ParameterScope(set), shape, 0, tp, rng, again);
        load(set, {{"q.weight", random_tensor({32, kRecomputeHidden}, 1)},
                   {"k.weight", random_tensor({16, kRecomputeHidden}, 2)},
                   {"v.weight", random_tensor({16, kRecomputeHidden}, 3)},
                   {"o.weight", random_tensor({kRecomputeHidden, 32}, 4)}});
        const at::Tensor x = leaf(between_blocks(random_tensor({kRecomputeTokens, kRecomputeHidden}, 5), tp));
        y[again] = attention.forward(x, {}, input);
        y[again].backward(at::ones_like(y[again]));
        grads[again].push_back(x.grad());
        for (const auto& parameter : set.all()) grads[again].push_back(parameter->value.grad());
      }
      expect_identical(y[1], y[0], "output");
      for (size_t i = 0; i < grads[0].size(); ++i) expect_identical(grads[1][i], grads[0][i], "gradient");
    });
}

// ---- discard_until_backward ---------------------------------------------------------------------------------------

struct NormAndLinear {
  ParameterSet set{at::kFloat, at::kCPU};
  Norm norm;
  ColumnParallelLinear linear;
  NormAndLinear(int64_t hidden, const TensorParallel& tp)
      : norm(ParameterScope(set).child("norm"), {.size = hidden}, tp.splits_tokens(), tp.rank()),
        linear(ParameterScope(set), "up", hidden, {{"up", 8}}, false, Init::zeros(), tp) {
    load(set, {{"norm.weight", random_tensor({hidden}, 1)}, {"up.weight", random_tensor({8, hidden}, 2)}});
  }
};

TEST(DiscardUntilBackward, GivesTheSameBits) {
  run_all_layouts([](const TensorParallel& tp) {
    at::Tensor results[2];
    std::vector<at::Tensor> grads[2];
    for (const bool discard : {false, true}) {
      NormAndLinear part(kRecomputeHidden, tp);
      const at::Tensor x = leaf(between_blocks(random_tensor({kRecomputeTokens, kRecomputeHidden}, 3), tp));
      const at::Tensor y = part.norm.forward(x);
      results[discard] = part.linear.forward(y);
      int made = 0;
      if (discard) {
        discard_until_backward(
            y,
            [&] {
              ++made;
              return ops::norm(x, part.norm.weights());
            },
            results[true]);
        EXPECT_EQ(y.storage().data(), nullptr);
      }
      EXPECT_EQ(made, 0);
      results[discard].backward(at::ones_like(results[discard]));
      EXPECT_EQ(made, discard ? 1 : 0);
      grads[discard].push_back(x.grad());
      for (const auto& parameter : part.set.all()) grads[discard].push_back(parameter->value.grad());
    }
    expect_identical(results[1], results[0], "output");
    for (size_t i = 0; i < grads[0].size(); ++i) expect_identical(grads[1][i], grads[0][i], "gradient");
  });
}

TEST(DiscardUntilBackward, FreesTheMemoryInBetween) {
  run_tp({1, false}, [](const TensorParallel& tp) {
    constexpr int64_t tokens = 512, hidden = 128, bytes = tokens * hidden * 4;
    NormAndLinear part(hidden, tp);
    const at::Tensor x = leaf(random_tensor({tokens, hidden}, 3));
    const testing::MemoryMeter meter;
    at::Tensor y = part.norm.forward(x);
    const at::Tensor out = part.linear.forward(y);
    const int64_t before = meter.current();
    discard_until_backward(
        y, [&] { return ops::norm(x, part.norm.weights()); }, out);
    EXPECT_EQ(meter.current(), before - bytes);
    y.reset();
    out.backward(at::ones_like(out));
  });
}

TEST(DiscardUntilBackward, DoesNothingWithoutBackward) {
  const at::Tensor value = random_tensor({4}, 1), out = value * 2;
  discard_until_backward(
      value, [] { return at::Tensor(); }, out);
  expect_identical(value, random_tensor({4}, 1), "value");
}

TEST(DiscardUntilBackward, RefusesViews) {
  const at::Tensor whole = leaf(random_tensor({4, 4}, 1)) * 1;
  for (const at::Tensor& view : {whole.narrow(0, 2, 2), whole.narrow(0, 0, 2), whole.t()}) {
    const at::Tensor out = view * 2;
    const auto discard = [&] {
      discard_until_backward(
          view, [] { return at::Tensor(); }, out);
    };
    expect_contains(message_of<InternalError>(discard), "a storage of its own");
  }
  EXPECT_NE(whole.storage().data(), nullptr);
}

}  // namespace
}  // namespace megalith::nn
