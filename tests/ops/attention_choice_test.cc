// The kernel that takes a call of attention, on every device, and bounds on memory where none is fused: the
// slices of the reference, and the rows of the memory-efficient kernel.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/ops/attention/attention.h"
#include "megalith/ops/attention/attention_internal.h"
#include "tests/ops/compare.h"

namespace megalith::ops {
namespace {

using at::Tensor;
using testing::random_tensor;

using Kernel = AttentionKernel;

TEST(AttentionChoice, OnlyOddSizesAndDropoutInFp32AreLeftToTheMathOnCuda) {
  const auto choice = [](at::ScalarType dtype, int64_t d, int64_t e, bool dropout = false, bool window = false) {
    return choose_attention_kernel({at::kCUDA, dtype, d, e, dropout, window});
  };
  for (const int64_t d : {4, 64, 80, 128, 192, 256, 576}) {
    EXPECT_EQ(choice(at::kFloat, d, d), Kernel::kEfficient) << d;
    EXPECT_EQ(choice(at::kFloat, d, d, false, true), Kernel::kEfficient) << d;
    EXPECT_EQ(choice(at::kFloat, d, d, true), Kernel::kMath) << d;
  }
  EXPECT_EQ(choice(at::kFloat, 64, 128), Kernel::kEfficient);
  EXPECT_EQ(choice(at::kFloat, 66, 66), Kernel::kMath);
  EXPECT_EQ(choice(at::kFloat, 64, 63), Kernel::kMath);
  EXPECT_EQ(choice(at::kDouble, 64, 64), Kernel::kMath);
  for (const at::ScalarType half : {at::kBFloat16, at::kHalf}) {
    EXPECT_EQ(choice(half, 128, 128), Kernel::kCudnn);
    EXPECT_EQ(choice(half, 128, 128, true), Kernel::kFlash);
    EXPECT_EQ(choice(half, 128, 128, false, true), Kernel::kCudnn);
    EXPECT_EQ(choice(half, 192, 128), Kernel::kCudnn);
    EXPECT_EQ(choice(half, 64, 128), Kernel::kEfficient) << "values larger than keys";
    EXPECT_EQ(choice(half, 576, 512), Kernel::kEfficient);
    EXPECT_EQ(choice(half, 68, 68), Kernel::kMath);
  }
}

TEST(AttentionChoice, TheCpuHasItsOwnKernels) {
  const auto choice = [](at::ScalarType dtype, bool dropout) {
    return choose_attention_kernel({at::kCPU, dtype, 64, 64, dropout, true});
  };
  EXPECT_EQ(choice(at::kFloat, false), Kernel::kFlash);
  EXPECT_EQ(choice(at::kBFloat16, false), Kernel::kFlash);
  EXPECT_EQ(choice(at::kFloat, true), Kernel::kMath);
  EXPECT_EQ(choice(at::kDouble, false), Kernel::kMath);
}

// More scores than are held at a time, so that a sequence is cut.
TEST(AttentionMath, SlicesOfQueriesChangeNothing) {
  const int64_t n = 2, s = 6000, d = 8;
  ASSERT_GT(n * s * s, kMostScores);
  const auto layout = SequenceLayout::packed({40, s});
  const auto run = [&](Kernel kernel) {
    std::vector<Tensor> x;
    for (uint64_t i = 0; i < 3; ++i)
      x.push_back(random_tensor({40 + s, i == 0 ? n : 1, d}, i).to(at::kFloat).requires_grad_());
    const Tensor out = attention(x[0], x[1], x[2], layout, layout, {.window = 5000, .kernel = kernel});
    (out * random_tensor(out.sizes(), 7).to(at::kFloat)).sum().backward();
    return std::vector<Tensor>{out.detach(), x[0].grad(), x[1].grad(), x[2].grad()};
  };
  const auto math = run(Kernel::kMath), flash = run(Kernel::kFlash);
  for (size_t i = 0; i < math.size(); ++i)
    EXPECT_LT((math[i] - flash[i]).abs().max().item<double>(), 2e-5 * flash[i].abs().max().item<double>()) << i;
}

TEST(AttentionEfficient, PadsLogSumExp) {
  const auto layout = SequenceLayout::packed({3, 40, 1});
  const Tensor own = random_tensor({2, 44}, 1).to(at::kFloat);  // [n, t]
  const Tensor padded = pad_log_sum_exp(own, layout);
  ASSERT_EQ(padded.sizes(), at::IntArrayRef({3, 2, 64}));
  EXPECT_TRUE(padded[0].narrow(1, 0, 3).equal(own.narrow(1, 0, 3)));
  EXPECT_TRUE(padded[1].narrow(1, 0, 40).equal(own.narrow(1, 3, 40)));
  EXPECT_TRUE(padded[2].narrow(1, 0, 1).equal(own.narrow(1, 43, 1)));
  EXPECT_EQ(padded.isinf().sum().item<int64_t>(), (3 * 64 - 44) * 2);
  EXPECT_TRUE(unpad_log_sum_exp(padded, layout).equal(own));
}

TEST(AttentionEfficient, CutsCallsWhoseRowsWouldBeMostlyPadding) {
  std::vector<int64_t> lengths(500, 16);
  EXPECT_FALSE(pads_too_much(SequenceLayout::packed(lengths), 32));
  lengths.push_back(16000);
  const auto unequal = SequenceLayout::packed(lengths);
  EXPECT_TRUE(pads_too_much(unequal, 32));
  EXPECT_FALSE(pads_too_much(SequenceLayout::packed({16, 16000}), 32));
  EXPECT_FALSE(pads_too_much(SequenceLayout::packed({16000}), 32));
  const Tensor x = at::arange(unequal.tokens()).to(at::kFloat).view({-1, 1, 1});
  const auto [first, second] = halves({x, x, x, unequal, unequal, {}});
  EXPECT_EQ(first.queries.sequences(), 250);
  EXPECT_EQ(second.queries.sequences(), 251);
  EXPECT_EQ(second.keys.longest(), 16000);
  EXPECT_TRUE(at::cat({first.k, second.k}).equal(x));
}

}  // namespace
}  // namespace megalith::ops
