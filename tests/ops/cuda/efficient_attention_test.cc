// The memory-efficient kernel, which is the one for fp32 on a GPU, against the reference with all scores: values and
// all gradients, also merged from parts of the keys.
#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <vector>

#include "megalith/base/error.h"
#include "megalith/ops/attention/attention.h"
#include "megalith/ops/sequence_layout.h"
#include "tests/ops/cuda/kernel_case.h"

namespace megalith::ops {
namespace {

using at::Tensor;
using Lengths = std::vector<int64_t>;

struct EfficientCase {
  Lengths queries, keys;  // keys empty: as queries
  int64_t n, g, d, e, window = 0;
  bool causal = true;

  SequenceLayout key_layout() const { return SequenceLayout::packed(keys.empty() ? queries : keys); }
  std::string name() const {
    return fmt::format("{} sequences of {} tokens, {} and {} heads of {} and {}, window {}, causal {}", queries.size(),
                       queries.back(), n, g, d, e, window, causal);
  }
};

std::vector<EfficientCase> efficient_cases() {
  Lengths unequal(600, 16);
  unequal.push_back(4000);
  return {{.queries = {64, 64}, .n = 4, .g = 4, .d = 64, .e = 64},
          {.queries = {33, 7, 1, 260}, .n = 4, .g = 4, .d = 64, .e = 64},
          {.queries = {33, 7, 160}, .n = 8, .g = 2, .d = 128, .e = 128},
          {.queries = {130}, .n = 6, .g = 1, .d = 80, .e = 80},
          {.queries = {130, 50}, .n = 2, .g = 2, .d = 192, .e = 128},
          {.queries = {130, 50}, .n = 2, .g = 1, .d = 64, .e = 128},
          {.queries = {100}, .n = 2, .g = 2, .d = 256, .e = 256},
          {.queries = {300, 40}, .n = 4, .g = 2, .d = 64, .e = 64, .window = 2},
          {.queries = {300, 40}, .n = 4, .g = 2, .d = 64, .e = 64, .window = 64},
          {.queries = {300, 400}, .n = 4, .g = 2, .d = 128, .e = 128, .window = 130},
          {.queries = {1, 5, 64}, .keys = {9, 5, 300}, .n = 4, .g = 2, .d = 64, .e = 64},
          {.queries = {20, 100}, .keys = {3, 70}, .n = 4, .g = 4, .d = 64, .e = 64, .causal = false},
          {.queries = unequal, .n = 2, .g = 2, .d = 32, .e = 32}};
}

// Calls a kernel on the GPU and backward of a weighted sum.
std::vector<Tensor> run_on_gpu(const std::vector<Tensor>& inputs, const EfficientCase& c, AttentionKernel kernel) {
  std::vector<Tensor> leaves;
  for (const Tensor& x : inputs) leaves.push_back(x.to(at::kCUDA).detach().clone().requires_grad_());
  const Tensor out = attention(leaves[0], leaves[1], leaves[2], SequenceLayout::packed(c.queries), c.key_layout(),
                               {.causal = c.causal, .window = c.window, .kernel = kernel});
  const Tensor weights = at::arange(out.numel(), out.options().dtype(at::kFloat)).mul(0.37).sin().view(out.sizes());
  (out.to(at::kFloat) * weights).sum().backward();
  return {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
}

TEST_P(CudaKernel, EfficientAttentionMatchesTheMath) {
  for (const EfficientCase& c : efficient_cases()) {
    const int64_t t = SequenceLayout::packed(c.queries).tokens(), u = c.key_layout().tokens();
    const std::vector<Tensor> inputs{random({t, c.n, c.d}), random({u, c.g, c.d}), random({u, c.g, c.e})};
    const auto ours = run_on_gpu(inputs, c, AttentionKernel::kEfficient);
    const auto reference = run_on_gpu(inputs, c, AttentionKernel::kMath);
    for (size_t i = 0; i < ours.size(); ++i)
      expect_same(ours[i], reference[i].cpu(), fmt::format("{}, result {}", c.name(), i));
  }
}

// Views into a fused projection whose rows do not start at multiples of 16 bytes.
TEST_P(CudaKernel, EfficientAttentionTakesUnalignedViews) {
  const int64_t t = 70, n = 2, d = 64;
  const Tensor fused = random({t, n * 3 * d + 1}).to(at::kCUDA);
  const auto layout = SequenceLayout::packed({t});
  const auto part = [&](int64_t i) { return fused.narrow(1, 1 + i * n * d, n * d).unflatten(1, {n, d}); };
  const auto run = [&](AttentionKernel kernel) {
    return attention(part(0), part(1), part(2), layout, layout, {.kernel = kernel});
  };
  expect_same(run(AttentionKernel::kEfficient), run(AttentionKernel::kMath).cpu(), "views");
}

// Ring attention merges parts over the keys: the gradients of each part come from the result of all.
TEST_P(CudaKernel, EfficientAttentionMergesParts) {
  const int64_t t = 90, u = 200, n = 4, g = 2, d = 64;
  const Tensor q = random({t, n, d}).to(at::kCUDA), k = random({u, g, d}).to(at::kCUDA);
  const Tensor v = random({u, g, d}).to(at::kCUDA), grad = random({t, n, d}).to(at::kCUDA);
  const auto queries = SequenceLayout::packed({t}), all = SequenceLayout::packed({u});
  const auto results = [&](AttentionKernel kernel) {
    const AttentionOptions options{.causal = false, .kernel = kernel};
    const AttentionResult whole = attention_forward(q, k, v, queries, all, options);
    std::vector<Tensor> found{whole.out, whole.log_sum_exp};
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>(0, 77), {77, 123}}) {
      const AttentionGrads grads = attention_backward(grad, q, k.narrow(0, first, count), v.narrow(0, first, count),
                                                      whole, queries, SequenceLayout::packed({count}), options);
      for (const Tensor& x : {grads.q, grads.k, grads.v}) found.push_back(x);
    }
    return found;
  };
  const auto ours = results(AttentionKernel::kEfficient), reference = results(AttentionKernel::kMath);
  for (size_t i = 0; i < ours.size(); ++i) expect_same(ours[i], reference[i].cpu(), fmt::format("result {}", i));
}

// Gradients of libtorch's kernel are wrong there, so other kernels are chosen, and it is refused by name.
TEST_P(CudaKernel, EfficientAttentionLeavesDropoutAndUnequalWindowsAlone) {
  const Tensor q = random({64, 4, 64}).to(at::kCUDA), k = random({300, 4, 64}).to(at::kCUDA);
  const auto queries = SequenceLayout::packed({64}), keys = SequenceLayout::packed({300});
  const AttentionOptions window{.window = 70, .kernel = AttentionKernel::kEfficient};
  EXPECT_THROW(attention(q, k, k, queries, keys, window), ConfigError);
  const at::Generator numbers = at::globalContext().defaultGenerator(at::Device(at::kCUDA, 0));
  const AttentionOptions dropout{.dropout = 0.3, .generator = numbers, .kernel = AttentionKernel::kEfficient};
  EXPECT_THROW(attention(q, q, q, queries, queries, dropout), ConfigError);
  if (GetParam() != at::kFloat) return;
  EXPECT_EQ(choose_attention_kernel(q, q, {.dropout = 0.3, .generator = numbers}), AttentionKernel::kMath);
  expect_same(attention(q, k, k, queries, keys, {.window = 70}),
              attention(q, k, k, queries, keys, {.window = 70, .kernel = AttentionKernel::kMath}).cpu(), "window");
}

// 32768 tokens: all scores of 8 heads would take 32 GiB.
TEST_P(CudaKernel, LongSequencesInFp32NeedNoScoreMatrix) {
  if (GetParam() != at::kFloat) GTEST_SKIP() << "about fp32";
  const int64_t t = 32768;
  Tensor x = at::ones({t, 8, 64}, at::TensorOptions(at::kCUDA)).mul(0.01).requires_grad_();
  const auto layout = SequenceLayout::dense(1, t);
  EXPECT_EQ(choose_attention_kernel(x, x, {}), AttentionKernel::kEfficient);
  attention(x, x, x, layout, layout, {}).sum().backward();
  EXPECT_TRUE(x.grad().isfinite().all().item<bool>());
}

}  // namespace
}  // namespace megalith::ops
