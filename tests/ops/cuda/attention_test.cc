// Attention over dense and packed sequences, with grouped heads and a window. Its kernels are libraries', so this also
// proves that the choice among them is right.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "megalith/ops/attention/attention.h"
#include "megalith/ops/sequence_layout.h"
#include "tests/ops/cuda/kernel_case.h"

namespace megalith::ops {
namespace {

using at::Tensor;

TEST_P(CudaKernel, AttentionMatchesTheCpu) {
  struct Case {
    SequenceLayout layout;
    int64_t n, g, d, e, window;
  };
  const std::vector<Case> cases{
      {SequenceLayout::dense(2, 64), 4, 4, 64, 64, 0},   {SequenceLayout::dense(2, 128), 8, 2, 64, 64, 0},
      {SequenceLayout::dense(1, 96), 4, 2, 128, 128, 0}, {SequenceLayout::packed({33, 7, 60}), 4, 2, 64, 64, 0},
      {SequenceLayout::dense(2, 64), 4, 2, 64, 64, 16},  {SequenceLayout::packed({33, 31}), 4, 4, 96, 64, 0}};
  for (const Case& c : cases) {
    const int64_t t = c.layout.tokens();
    compare(
        {random({t, c.n, c.d}), random({t, c.g, c.d}), random({t, c.g, c.e})},
        [&](const Tensors& in) {
          return Tensors{attention(in[0], in[1], in[2], c.layout, c.layout, {.window = c.window})};
        },
        fmt::format("{} tokens, {} and {} heads of {} and {}, window {}", t, c.n, c.g, c.d, c.e, c.window));
  }
}

// Sequences of unequal lengths, windows, large heads and keys before the first query, by cuDNN without libtorch. A
// graph serves calls of other lengths: earlier calls must not show.
TEST_P(CudaKernel, AttentionWithPlansMatchesTheDefinition) {
  if (GetParam() == at::kFloat) GTEST_SKIP() << "cuDNN takes numbers of 16 bits";
  const auto plans = make_attention_plans();
  if (!plans) GTEST_SKIP() << "built without cuDNN's front end";
  struct Case {
    SequenceLayout queries, keys;
    int64_t n, g, d, e, window;
    bool causal;
  };
  const auto packed = [](const std::vector<int64_t>& lengths) { return SequenceLayout::packed(lengths); };
  const auto same = [](const SequenceLayout& x) { return std::pair{x, x}; };
  std::vector<Case> cases;
  const auto add = [&](const std::pair<SequenceLayout, SequenceLayout>& layouts, int64_t n, int64_t g, int64_t d,
                       int64_t e, int64_t window, bool causal) {
    cases.push_back({layouts.first, layouts.second, n, g, d, e, window, causal});
  };
  add(same(packed({33, 7, 60})), 4, 2, 64, 64, 0, true);
  add(same(packed({1, 250, 3, 90, 128})), 4, 2, 64, 64, 0, true);
  add(same(packed({60, 7, 33})), 4, 2, 64, 64, 0, true);  // the graph of the first
  add(same(packed({300, 41})), 8, 2, 128, 128, 0, true);
  add(same(packed({300, 41, 5})), 4, 4, 64, 64, 100, true);
  add(same(SequenceLayout::dense(2, 256)), 4, 2, 64, 64, 16, true);
  add(same(packed({120, 64})), 4, 4, 80, 80, 0, false);
  add(same(packed({120, 64})), 4, 4, 72, 72, 0, false);
  add(same(packed({120, 64})), 2, 1, 256, 256, 0, true);
  add(same(packed({120, 64})), 4, 4, 192, 128, 0, true);
  add({packed({20, 64}), packed({120, 64})}, 4, 2, 64, 64, 0, true);
  add({packed({20, 64}), packed({120, 90})}, 4, 2, 64, 64, 30, true);
  add({packed({20, 64}), packed({120, 9})}, 4, 2, 64, 64, 0, false);
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    const int64_t t = c.queries.tokens(), u = c.keys.tokens();
    // Parts of one tensor, as those of a fused projection.
    const Tensor q = random({t, c.n, c.d}).to(at::kCUDA), k = random({u, c.g, c.d}).to(at::kCUDA),
                 v = random({u, c.g, c.e}).to(at::kCUDA), dout = random({t, c.n, c.e}).to(at::kCUDA);
    AttentionOptions options{.causal = c.causal, .window = c.window};
    const auto run = [&](AttentionKernel kernel, bool exact) {
      options.kernel = kernel;
      options.plans = exact ? nullptr : plans.get();
      const auto cast = [&](const Tensor& x) { return (exact ? x.to(at::kFloat) : x).detach().requires_grad_(); };
      const Tensors in{cast(q), cast(k), cast(v)};
      const Tensor out = attention(in[0], in[1], in[2], c.queries, c.keys, options);
      out.backward(dout.to(out.scalar_type()));
      const AttentionResult parts = attention_forward(in[0], in[1], in[2], c.queries, c.keys, options);
      return Tensors{out.detach(), in[0].grad(), in[1].grad(), in[2].grad(), parts.log_sum_exp};
    };
    const int64_t before = plans->kept();
    const Tensors ours = run(AttentionKernel::kCudnn, false), exact = run(AttentionKernel::kMath, true);
    const std::string what = fmt::format("case {}: {} and {} tokens, heads {} and {} of {} and {}, window {}", i, t, u,
                                         c.n, c.g, c.d, c.e, c.window);
    EXPECT_EQ(plans->kept(), before + (i == 2 ? 0 : 2)) << what;
    for (size_t j = 0; j < ours.size(); ++j) {
      const double scale = exact[j].abs().max().item<double>();
      EXPECT_LE((ours[j].to(at::kFloat) - exact[j]).abs().max().item<double>(),
                (GetParam() == at::kHalf ? 4e-3 : 2e-2) * scale)
          << what << ", result " << j;
    }
  }
}

}  // namespace
}  // namespace megalith::ops
