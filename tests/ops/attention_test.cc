// Attention against its definition pair by pair: every kernel, dense and packed sequences, windows, dropout, parts of
// the keys that are merged, and the arguments that it refuses.
#include "megalith/ops/attention/attention.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "megalith/base/error.h"
#include "tests/ops/compare.h"
#include "tests/support/expect.h"

namespace megalith::ops {
namespace {

using at::Tensor;
using testing::evaluate;
using testing::Evaluation;
using testing::expect_close;
using testing::expect_contains;
using testing::expect_matches;
using testing::random_tensor;
using testing::TensorList;
using testing::ThreadCount;

using Lengths = std::vector<int64_t>;

struct AttentionCase {
  std::string name;
  Lengths queries, keys;  // keys empty: as queries
  int64_t n = 4, g = 4, d = 16, e = 16;
  bool causal = true;
  int64_t window = 0;
  double scale = 0;

  const Lengths& key_lengths() const { return keys.empty() ? queries : keys; }
  TensorList inputs() const {
    const int64_t t = at::tensor(queries).sum().item<int64_t>(), u = at::tensor(key_lengths()).sum().item<int64_t>();
    return {random_tensor({t, n, d}, 1), random_tensor({u, g, d}, 2), random_tensor({u, g, e}, 3)};
  }
  AttentionOptions options(AttentionKernel kernel) const {
    return {.scale = scale, .causal = causal, .window = window, .kernel = kernel};
  }
  testing::Operation with(AttentionKernel kernel) const {
    return [this, kernel](const TensorList& x) -> TensorList {
      return {attention(x[0], x[1], x[2], SequenceLayout::packed(queries), SequenceLayout::packed(key_lengths()),
                        options(kernel))};
    };
  }
};

// 0 where query i of `queries` sees key j of `keys`, else -inf; written out pair by pair.
Tensor mask_of(int64_t queries, int64_t keys, bool causal, int64_t window) {
  Tensor mask = at::zeros({queries, keys}, at::kDouble);
  auto m = mask.accessor<double, 2>();
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t distance = (keys - queries + i) - j;
      if ((causal && distance < 0) || (window > 0 && distance >= window))
        m[i][j] = -std::numeric_limits<double>::infinity();
    }
  return mask;
}

// The definition, through ATen's softmax and its gradients. q, k, v of one sequence.
Tensor define_one(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionCase& c) {
  const int64_t repeats = c.n / c.g;
  const Tensor keys = k.repeat_interleave(repeats, 1), values = v.repeat_interleave(repeats, 1);
  const double scale = c.scale > 0 ? c.scale : 1 / std::sqrt(static_cast<double>(c.d));
  const Tensor mask = mask_of(q.size(0), k.size(0), c.causal, c.window);
  const Tensor p = (at::einsum("ihd,jhd->hij", {q, keys}) * scale + mask).softmax(-1);
  return at::einsum("hij,jhe->ihe", {p, values});
}

TensorList define(const TensorList& x, const AttentionCase& c) {
  const TensorList q = x[0].split_with_sizes(c.queries), k = x[1].split_with_sizes(c.key_lengths());
  const TensorList v = x[2].split_with_sizes(c.key_lengths());
  TensorList out;
  for (size_t s = 0; s < q.size(); ++s) out.push_back(define_one(q[s], k[s], v[s], c));
  return {at::cat(out)};
}

std::vector<AttentionCase> cases() {
  return {
      {.name = "dense", .queries = {70, 70}},
      {.name = "one sequence, one head", .queries = {130}, .n = 1, .g = 1},
      {.name = "packed", .queries = {1, 2, 17, 130}},
      {.name = "longer than a block of keys", .queries = {330}, .n = 2, .g = 2},
      {.name = "8 heads over 2", .queries = {65, 33}, .n = 8, .g = 2},
      {.name = "8 heads over 1", .queries = {65, 33}, .n = 8, .g = 1},
      {.name = "d 8", .queries = {40}, .d = 8, .e = 8},
      {.name = "d 24", .queries = {40}, .d = 24, .e = 24},
      {.name = "d 64", .queries = {80, 80}, .d = 64, .e = 64},
      {.name = "d 32, values of 64", .queries = {1, 70, 200}, .d = 32, .e = 64},
      {.name = "d 96, window", .queries = {40, 150}, .n = 4, .g = 2, .d = 96, .e = 32, .window = 50},
      {.name = "d 64, longer than a block of keys", .queries = {600}, .n = 1, .g = 1, .d = 64, .e = 64},
      {.name = "d 64, not causal", .queries = {1, 33, 70}, .keys = {80, 2, 100}, .d = 64, .e = 64, .causal = false},
      {.name = "d 64, more keys than queries",
       .queries = {1, 5, 100},
       .keys = {9, 65, 300},
       .n = 2,
       .g = 1,
       .d = 64,
       .e = 64},
      {.name = "d 80", .queries = {40}, .d = 80, .e = 80},
      {.name = "values of another size", .queries = {1, 50}, .d = 24, .e = 40},
      {.name = "values of another size, odd", .queries = {50}, .d = 10, .e = 3},
      {.name = "window 2", .queries = {17, 130}, .window = 2},
      {.name = "window 8", .queries = {5, 130}, .window = 8},
      {.name = "window 200", .queries = {17, 400}, .n = 2, .g = 1, .window = 200},
      {.name = "window as long as the sequence", .queries = {64}, .window = 64},
      {.name = "not causal", .queries = {1, 17, 130}, .causal = false},
      {.name = "not causal, fewer keys", .queries = {20, 100}, .keys = {3, 70}, .causal = false},
      {.name = "not causal, more keys", .queries = {20, 1}, .keys = {300, 70}, .causal = false},
      {.name = "more keys than queries", .queries = {1, 5, 64}, .keys = {9, 5, 300}},
      {.name = "more keys than queries, window",
       .queries = {1, 5, 64},
       .keys = {9, 5, 300},
       .n = 4,
       .g = 2,
       .window = 7},
      {.name = "own scale", .queries = {33}, .scale = 0.7},
  };
}

class AttentionKernels : public ::testing::TestWithParam<AttentionKernel> {};

TEST_P(AttentionKernels, EqualTheDefinition) {
  for (const AttentionCase& c : cases()) {
    SCOPED_TRACE(c.name);
    expect_matches(
        c.with(GetParam()), [&](const TensorList& x) { return define(x, c); }, c.inputs(), at::kFloat, 1e-5);
  }
}

// A window of 1: a token sees itself alone. The output is its value, whatever q and k are, and their gradients are 0.
TEST_P(AttentionKernels, WindowOfOne) {
  const AttentionCase c{.queries = {17, 130}, .n = 4, .g = 2, .window = 1};
  const Evaluation got = evaluate(c.with(GetParam()), c.inputs(), at::kFloat);
  const Evaluation expected = evaluate([&](const TensorList& x) { return define(x, c); }, c.inputs(), at::kDouble);
  expect_close(got.outputs[0], expected.outputs[0], 1e-6);
  expect_close(got.grads[2], expected.grads[2], 1e-6);
  EXPECT_LE(got.grads[0].abs().max().item<double>(), 1e-5);
  EXPECT_LE(got.grads[1].abs().max().item<double>(), 1e-5);
}

// Inputs, outputs and gradients are stored with 8 (bf16) and 11 (fp16) bits; everything between is fp32.
TEST_P(AttentionKernels, EqualTheDefinitionIn16Bits) {
  for (const AttentionCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const auto definition = [&](const TensorList& x) { return define(x, c); };
    expect_matches(c.with(GetParam()), definition, c.inputs(), at::kBFloat16, 1.2e-2);
    expect_matches(c.with(GetParam()), definition, c.inputs(), at::kHalf, 2e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(Cpu, AttentionKernels, ::testing::Values(AttentionKernel::kMath, AttentionKernel::kFlash),
                         [](const auto& kernel) { return kernel.param == AttentionKernel::kMath ? "Math" : "Flash"; });

TEST(Attention, MathIsExactInFp64) {
  for (const AttentionCase& c : cases()) {
    SCOPED_TRACE(c.name);
    expect_matches(
        c.with(AttentionKernel::kMath), [&](const TensorList& x) { return define(x, c); }, c.inputs(), at::kDouble,
        1e-12);
  }
}

// Few heads and sequences: threads share a sequence, and the gradients of k and v are sums of parts.
TEST(Attention, AnyNumberOfThreadsGivesTheSame) {
  for (const int threads : {1, 2, 3, 8}) {
    const ThreadCount count(threads);
    for (const AttentionCase& c :
         {AttentionCase{.name = "one head", .queries = {300}, .n = 1, .g = 1},
          AttentionCase{.name = "shared head", .queries = {100, 3}, .n = 4, .g = 1, .window = 30},
          AttentionCase{.name = "many", .queries = {10, 20, 30, 40, 50}, .n = 8, .g = 4}}) {
      SCOPED_TRACE(c.name + ", threads " + std::to_string(threads));
      const auto ours = c.with(AttentionKernel::kFlash);
      const auto definition = [&](const TensorList& x) { return define(x, c); };
      expect_matches(ours, definition, c.inputs(), at::kFloat, 1e-5);
      expect_matches(ours, definition, c.inputs(), at::kBFloat16, 1.2e-2);
      const Evaluation once = evaluate(ours, c.inputs(), at::kFloat), twice = evaluate(ours, c.inputs(), at::kFloat);
      EXPECT_TRUE(once.outputs[0].equal(twice.outputs[0]));
      for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(once.grads[i].equal(twice.grads[i]));
    }
  }
}

// The output of the fused projection: q, k and v as slices of one row.
TEST(Attention, TakesStridedHeads) {
  const AttentionCase c{.queries = {30, 41}, .n = 4, .g = 2, .d = 16, .e = 16};
  const auto slices = [](const TensorList& x) -> TensorList {
    return {x[0].narrow(1, 0, 4), x[0].narrow(1, 4, 2), x[0].narrow(1, 6, 2)};
  };
  const TensorList rows{random_tensor({71, 8, 16})};
  for (const auto kernel : {AttentionKernel::kMath, AttentionKernel::kFlash})
    expect_matches([&](const TensorList& x) { return c.with(kernel)(slices(x)); },
                   [&](const TensorList& x) { return define(slices(x), c); }, rows, at::kFloat, 1e-5);
  // Channels that are not contiguous are copied.
  expect_matches([&](const TensorList& x) { return c.with(AttentionKernel::kFlash)(slices({x[0].transpose(1, 2)})); },
                 [&](const TensorList& x) { return define(slices({x[0].transpose(1, 2)}), c); },
                 {random_tensor({71, 16, 8})}, at::kFloat, 1e-5);
}

// Scores of 1e4 and more: exp of anything but the difference to the maximum would overflow.
TEST(Attention, LargeScoresDoNotOverflow) {
  const AttentionCase c{.queries = {300}, .n = 2, .g = 2, .scale = 100};
  const TensorList x = c.inputs();
  const auto out = c.with(AttentionKernel::kFlash)({x[0].to(at::kFloat), x[1].to(at::kFloat), x[2].to(at::kFloat)});
  expect_close(out[0], define({x[0].to(at::kFloat).to(at::kDouble), x[1].to(at::kFloat).to(at::kDouble), x[2]}, c)[0],
               2e-3);
}

TEST(Attention, NanComesOut) {
  Tensor q = at::randn({70, 1, 16});
  const Tensor k = at::randn({70, 1, 16});
  q.select(0, 50).fill_(std::numeric_limits<float>::quiet_NaN());
  const auto layout = SequenceLayout::dense(1, 70);
  for (const auto kernel : {AttentionKernel::kMath, AttentionKernel::kFlash}) {
    const Tensor bad = attention(q, k, k, layout, layout, {.kernel = kernel}).isnan().flatten(1).all(1);
    EXPECT_EQ(bad.sum().item<int64_t>(), 1);
    EXPECT_TRUE(bad[50].item<bool>());
  }
}

// ---- Without autograd ------------------------------------------------------------------------------------

// Two halves of the keys, merged by their log-sum-exp, as ring attention does; then the gradients of the halves.
TEST(Attention, PartsOfTheKeysMerge) {
  const int64_t t = 90, n = 4, g = 2, d = 16;
  const Tensor q = random_tensor({t, n, d}, 1).to(at::kFloat), k = random_tensor({t, g, d}, 2).to(at::kFloat);
  const Tensor v = random_tensor({t, g, d}, 3).to(at::kFloat), grad = random_tensor({t, n, d}, 4).to(at::kFloat);
  const auto whole = SequenceLayout::dense(1, t), half = SequenceLayout::dense(1, t / 2);
  for (const auto kernel : {AttentionKernel::kMath, AttentionKernel::kFlash}) {
    const AttentionOptions options{.causal = false, .kernel = kernel};
    const AttentionResult all = attention_forward(q, k, v, whole, whole, options);
    const Tensor scores = at::einsum("ihd,jhd->hij", {q, k.repeat_interleave(2, 1)}) / 4;
    expect_close(all.log_sum_exp, scores.logsumexp(-1), 1e-6);
    AttentionResult part[2];
    for (int i = 0; i < 2; ++i)
      part[i] =
          attention_forward(q, k.narrow(0, i * t / 2, t / 2), v.narrow(0, i * t / 2, t / 2), whole, half, options);
    const Tensor lse = at::logaddexp(part[0].log_sum_exp, part[1].log_sum_exp);  // [n, t]
    Tensor out = at::zeros_like(q);
    for (const auto& p : part) out += p.out * at::exp(p.log_sum_exp - lse).t().unsqueeze(2);
    expect_close(out, all.out, 1e-6);
    expect_close(lse, all.log_sum_exp, 1e-6);

    const AttentionGrads expected = attention_backward(grad, q, k, v, all, whole, whole, options);
    Tensor grad_q = at::zeros_like(q);
    for (int64_t i = 0; i < 2; ++i) {
      const auto piece = [&](const Tensor& x) { return x.narrow(0, i * t / 2, t / 2); };
      const AttentionGrads got = attention_backward(grad, q, piece(k), piece(v), {out, lse}, whole, half, options);
      grad_q += got.q;
      expect_close(got.k, piece(expected.k), 1e-5);
      expect_close(got.v, piece(expected.v), 1e-5);
    }
    expect_close(grad_q, expected.q, 1e-5);
  }
}

TEST(Attention, NothingIsRecordedWithoutNeed) {
  const auto layout = SequenceLayout::dense(1, 4);
  const Tensor x = at::randn({4, 2, 8});
  EXPECT_FALSE(attention(x, x, x, layout, layout, {}).requires_grad());
  const Tensor q = at::randn({4, 2, 8}).requires_grad_();
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(attention(q, x, x, layout, layout, {}).requires_grad());
  }
  const Tensor y = attention(q, x, x, layout, layout, {});
  y.sum().backward();
  EXPECT_TRUE(q.grad().defined());
  EXPECT_FALSE(x.grad().defined());
}

TEST(Attention, NoTokens) {
  for (const auto kernel : {AttentionKernel::kMath, AttentionKernel::kFlash}) {
    const Tensor q = at::empty({0, 4, 8}).requires_grad_(), k = at::empty({0, 2, 8}), v = at::empty({0, 2, 6});
    const Tensor out = attention(q, k, v, {}, {}, {.kernel = kernel});
    EXPECT_EQ(out.sizes(), (at::IntArrayRef{0, 4, 6}));
    out.sum().backward();
    EXPECT_EQ(q.grad().sizes(), q.sizes());
  }
}

// ---- Dropout ---------------------------------------------------------------------------------------------

AttentionOptions dropping(double p, uint64_t seed) {
  return {.causal = false, .dropout = p, .generator = at::detail::createCPUGenerator(seed)};
}

// Equal scores and values of 1: a row's output is its share of kept keys, divided by 1 - p.
TEST(Attention, DropoutKeepsTheExpectedShare) {
  const auto layout = SequenceLayout::packed({100, 300});
  const Tensor q = at::zeros({400, 2, 8}), v = at::ones({400, 2, 1});
  for (const double p : {0.1, 0.5}) {
    const Tensor out = attention(q, q, v, layout, layout, dropping(p, 5));
    const int64_t pairs = 2 * (100 * 100 + 300 * 300);
    const Tensor kept = out.flatten(1) * (1 - p);  // [t, 2], shares
    const double share = (kept.narrow(0, 0, 100).sum() * 100 + kept.narrow(0, 100, 300).sum() * 300).item<double>() /
                         static_cast<double>(pairs);
    EXPECT_NEAR(share, 1 - p, 5 * std::sqrt(p * (1 - p) / static_cast<double>(pairs)));
    EXPECT_GT(kept.std().item<double>(), 0.005);  // rows have masks of their own
  }
}

TEST(Attention, DropoutFollowsItsGenerator) {
  const AttentionCase c{.queries = {20, 30}, .n = 4, .g = 2};
  const auto run = [&](const at::Generator& generator) {
    return evaluate(
        [&](const TensorList& x) -> TensorList {
          return {attention(x[0], x[1], x[2], SequenceLayout::packed(c.queries), SequenceLayout::packed(c.queries),
                            {.dropout = 0.3, .generator = generator})};
        },
        c.inputs(), at::kFloat);
  };
  const auto seeded = [](uint64_t seed) { return at::detail::createCPUGenerator(seed); };
  const at::Generator generator = seeded(7);
  const Evaluation first = run(generator), second = run(generator), again = run(seeded(7));
  EXPECT_TRUE(first.outputs[0].equal(again.outputs[0]));
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(first.grads[i].equal(again.grads[i]));
  EXPECT_FALSE(first.outputs[0].equal(second.outputs[0]));
}

// The derivative in a random direction, by differences with the mask held fixed.
TEST(Attention, DropoutGradientIsThatOfItsMask) {
  const AttentionCase c{.queries = {9, 14}, .n = 4, .g = 2, .d = 6, .e = 5, .window = 6};
  const auto layout = SequenceLayout::packed(c.queries);
  const Tensor weight = random_tensor({23, 4, 5}, 9);
  const auto loss = [&](const TensorList& x) {
    const AttentionOptions options{.window = c.window, .dropout = 0.4, .generator = at::detail::createCPUGenerator(3)};
    return (attention(x[0], x[1], x[2], layout, layout, options) * weight).sum();
  };
  TensorList x = c.inputs();
  for (Tensor& t : x) t.requires_grad_();
  loss(x).backward();
  for (size_t i = 0; i < 3; ++i) {
    const Tensor direction = random_tensor(x[i].sizes(), 20 + i);
    const double step = 1e-5;
    const at::NoGradGuard no_grad;
    TensorList up = x, down = x;
    up[i] = x[i] + step * direction;
    down[i] = x[i] - step * direction;
    const double difference = (loss(up) - loss(down)).item<double>() / (2 * step);
    EXPECT_NEAR((x[i].grad() * direction).sum().item<double>(), difference, 1e-7 * std::abs(difference) + 1e-8);
  }
}

// ---- Choice and refusals ---------------------------------------------------------------------------------

TEST(Attention, ChoosesAKernel) {
  const Tensor x = at::zeros({2, 1, 8});
  EXPECT_EQ(choose_attention_kernel(x, x, {}), AttentionKernel::kFlash);
  EXPECT_EQ(choose_attention_kernel(x.to(at::kBFloat16), x, {}), AttentionKernel::kFlash);
  EXPECT_EQ(choose_attention_kernel(x.to(at::kDouble), x, {}), AttentionKernel::kMath);
  EXPECT_EQ(choose_attention_kernel(x, x, dropping(0.1, 1)), AttentionKernel::kMath);
}

template <typename E>
std::string refusal(const Tensor& q, const Tensor& k, const Tensor& v, const SequenceLayout& queries,
                    const SequenceLayout& keys, const AttentionOptions& options) {
  try {
    attention(q, k, v, queries, keys, options);
  } catch (const E& error) {
    return error.what();
  }
  return "not refused";
}

TEST(Attention, RefusesOptionsItCannotFollow) {
  const auto layout = SequenceLayout::dense(1, 4);
  const Tensor x = at::zeros({4, 2, 8});
  const auto with = [&](const AttentionOptions& options) {
    return refusal<ConfigError>(x, x, x, layout, layout, options);
  };
  expect_contains(with({.scale = -1}), "scale is -1");
  expect_contains(with({.causal = false, .window = 3}), "window (3) needs causal");
  expect_contains(with({.window = -2}), "window is -2");
  expect_contains(with({.dropout = 1}), "attention_dropout is 1");
  AttentionOptions flash = dropping(0.1, 1);
  flash.kernel = AttentionKernel::kFlash;
  expect_contains(with(flash), "kernel flash cannot be used: on the CPU it does not support dropout");
  expect_contains(with({.kernel = AttentionKernel::kCudnn}), "kernel cudnn cannot be used: it needs CUDA");
  expect_contains(refusal<InternalError>(x, x, x, layout, layout, {.dropout = 0.1}), "needs a generator");
}

TEST(Attention, RefusesShapesThatDoNotFit) {
  const auto layout = SequenceLayout::dense(1, 4), longer = SequenceLayout::dense(1, 5);
  const auto zeros = [](int64_t t, int64_t n, int64_t d) { return at::zeros({t, n, d}); };
  const auto with = [&](const Tensor& q, const Tensor& k, const Tensor& v, const SequenceLayout& keys) {
    return refusal<InternalError>(q, k, v, layout, keys, {});
  };
  const Tensor x = zeros(4, 2, 8);
  expect_contains(with(x, zeros(5, 2, 8), x, layout), "5 keys");
  expect_contains(with(x, zeros(4, 3, 8), zeros(4, 3, 8), layout), "2 query, 3 key");
  expect_contains(with(x, zeros(4, 2, 6), x, layout), "8 channels, key heads 6");
  expect_contains(with(x, x.to(at::kDouble), x, layout), "one dtype");
  expect_contains(with(x, x, x, SequenceLayout::packed({2, 2})), "1 query sequences and 2 key sequences");
  expect_contains(refusal<InternalError>(zeros(5, 2, 8), x, x, longer, layout, {}), "5 queries and 4 keys");
}

}  // namespace
}  // namespace megalith::ops
