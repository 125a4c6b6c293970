// Products of matrices by cuBLASLt, whose kernels a trial chooses, against fp32 products on the same GPU.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "megalith/ops/gemm/gemm.h"
#include "tests/ops/cuda/kernel_case.h"

namespace megalith::ops {
namespace {

using at::Tensor;

// Large enough for cuBLASLt, in the four ways in which linear layers call it.
TEST_P(CudaKernel, LargeProductsMatchTheirDefinition) {
  const auto plans = make_gemm_plans();
  const GemmKernels tuned{.plans = plans.get()};
  const int64_t t = 4096, in = 1024, out = 2048;
  const auto cuda = [&](at::IntArrayRef sizes) { return random(sizes).to(at::kCUDA); };
  const Tensor x = cuda({t, in}), weight = cuda({out, in}), dy = cuda({t, out}), bias = cuda({out}),
               residual = cuda({t, out});
  const auto wide = [](const Tensor& tensor) { return tensor.to(at::kFloat); };
  const auto expect = [](const Tensor& actual, const Tensor& exact, const char* what) {
    const double tolerance = actual.scalar_type() == at::kFloat ? 2e-5 : 8e-3;
    EXPECT_LE((actual.to(at::kFloat) - exact).abs().max().item<double>(), tolerance * exact.abs().max().item<double>())
        << what;
  };
  for (const bool deterministic : {false, true}) {
    at::globalContext().setDeterministicAlgorithms(deterministic, /*warn_only=*/true);
    const Tensor y = wide(x).mm(wide(weight).t()), dw = wide(dy).t().mm(wide(x));
    for (int again = 0; again < 2; ++again) {  // the choice is made in the first
      expect(gemm(x, weight.t(), {}, tuned), y, "forward");
      expect(gemm(x, weight.t(), {.bias = bias}, tuned), y + wide(bias), "with a bias");
      expect(gemm(x, weight.t(), {.bias = bias.flip(0)}, tuned), y + wide(bias.flip(0)), "with another bias");
      expect(gemm(x, weight.t(), {.residual = residual}, tuned), y + wide(residual), "with a residual");
      expect(gemm(x, weight.t(), {bias, residual}, tuned), y + wide(bias) + wide(residual), "with both");
      expect(gemm(dy, weight, {}, tuned), wide(dy).mm(wide(weight)), "input gradient");
      const Tensor all = at::full({2 * t, in}, 3, x.options());
      gemm_out(all.narrow(0, t, t), dy, weight, tuned);
      expect(all.narrow(0, t, t), wide(dy).mm(wide(weight)), "into rows of another");
      EXPECT_TRUE(all.narrow(0, 0, t).eq(3).all().item<bool>());
      const Tensor grad = at::full({out, in}, NAN, x.options().dtype(at::kFloat));
      add_gemm(grad, dy.t(), x, 0, 1, tuned);
      expect(grad, dw, "weight gradient");
      add_gemm(grad, dy.t(), x, 1, 0.5, tuned);
      expect(grad, 1.5 * dw, "weight gradient added");
    }
  }
  at::globalContext().setDeterministicAlgorithms(false, false);
}

// Packed rows bring another number of tokens in every step: few of them are measured, and few plans are kept.
TEST_P(CudaKernel, ProductsOfManySizesAreMeasuredSeldom) {
  if (GetParam() != at::kBFloat16) GTEST_SKIP() << "products in fp32 are not cuBLASLt's";
  const auto plans = make_gemm_plans();
  const GemmKernels tuned{.plans = plans.get()};
  const int64_t in = 1024, out = 2048;
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  const Tensor weight = at::randn({out, in}, options), tokens = at::randn({8192, in}, options),
               dy = at::randn({8192, out}, options), wide = weight.to(at::kFloat);
  constexpr int kSizes = 40;
  for (int i = 0; i < kSizes; ++i) {
    const int64_t t = 7200 + 24 * i;  // one of four classes between 4096 and 8192
    const Tensor x = tokens.narrow(0, 0, t), exact = x.to(at::kFloat).mm(wide.t());
    const Tensor y = gemm(x, weight.t(), {}, tuned), grad = at::empty({out, in}, x.options().dtype(at::kFloat));
    EXPECT_LE((y.to(at::kFloat) - exact).abs().max().item<double>(), 8e-3 * exact.abs().max().item<double>()) << t;
    const Tensor dyt = dy.narrow(0, 0, t), exact_grad = dyt.to(at::kFloat).t().mm(x.to(at::kFloat));
    add_gemm(grad, dyt.t(), x, 0, 1, tuned);
    EXPECT_LE((grad - exact_grad).abs().max().item<double>(), 2e-5 * exact_grad.abs().max().item<double>()) << t;
  }
  EXPECT_EQ(plans->counts().trials, 4) << "two sizes each of forward and of the weight's gradient";
  EXPECT_EQ(plans->counts().kept, 2 * kSizes);
  for (int64_t t = 8; t <= 8 * 1100; t += 8) gemm(tokens.narrow(0, 0, 4096 + t % 4096), weight.t(), {}, tuned);
  EXPECT_LE(plans->counts().kept, 1024);
}

// Long sums with few results, for which kernels that split the sum are the fastest: the result is rounded once.
TEST_P(CudaKernel, LongSumsAreRoundedOnce) {
  if (GetParam() != at::kBFloat16) GTEST_SKIP() << "in fp32 nothing is rounded to 16 bits";
  at::globalContext().setAllowBF16ReductionCuBLAS(false);  // as a run does, for products that are not cuBLASLt's
  const auto plans = make_gemm_plans();
  for (const int64_t rows : {128, 512}) {
    const Tensor a = random({rows, 1 << 16}).to(at::kCUDA), b = random({512, 1 << 16}).to(at::kCUDA);
    const Tensor residual = random({rows, 512}).to(at::kCUDA);
    const Tensor exact = a.to(at::kDouble).mm(b.to(at::kDouble).t());
    const auto expect_rounded = [](const Tensor& actual, const Tensor& sum, const char* what) {
      // Half a unit of bf16, and what fp32 loses in a sum of 65536 numbers.
      const Tensor beyond = (actual.to(at::kDouble) - sum).abs() - sum.abs() / 256;
      EXPECT_LE(beyond.max().item<double>(), 0.02) << what;
    };
    for (int again = 0; again < 2; ++again) {  // the choice is made in the first
      expect_rounded(gemm(a, b.t(), {}, {.plans = plans.get()}), exact, "product");
      expect_rounded(gemm(a, b.t(), {.residual = residual}, {.plans = plans.get()}), exact + residual.to(at::kDouble),
                     "with a residual");
    }
  }
}

// A kernel that is launched while a product runs, as a collective is, ends before it.
TEST_P(CudaKernel, ProductsLeaveRoomForOtherKernels) {
  if (GetParam() != at::kBFloat16) GTEST_SKIP() << "products in fp32 are not cuBLASLt's";
  const auto plans = make_gemm_plans();
  const auto options = at::TensorOptions(at::kCUDA).dtype(at::kBFloat16);
  constexpr int64_t kSize = 16384;  // 12 ms on an H100
  const Tensor a = at::randn({kSize, kSize}, options), b = at::randn({kSize, kSize}, options), out = at::empty_like(a);
  const SparedMultiprocessors room(plans.get(), 16);
  expect_room_beside([&] { gemm_out(out, a, b, {.plans = plans.get()}); });
  const Tensor row = a.narrow(0, 77, 1).to(at::kFloat).mm(b.to(at::kFloat)), got = out.narrow(0, 77, 1).to(at::kFloat);
  EXPECT_LE((got - row).abs().max().item<double>(), 8e-3 * row.abs().max().item<double>());
}

// Whatever a trial has chosen: the kernels of replicated weights are those of every other process.
TEST_P(CudaKernel, FixedKernelsDoNotDependOnTrials) {
  const auto plans = make_gemm_plans();
  const int64_t t = 4096, in = 1024, out = 2048;
  const Tensor x = random({t, in}).to(at::kCUDA), weight = random({out, in}).to(at::kCUDA),
               dy = random({t, out}).to(at::kCUDA);
  const auto results = [&](KernelChoice choice) {
    const GemmKernels kernels{choice, plans.get()};
    const Tensor grad = at::zeros({out, in}, x.options().dtype(at::kFloat));
    add_gemm(grad, dy.t(), x, 0, 1, kernels);
    add_gemm(grad, dy.t(), x, 1, 1, kernels);
    return Tensors{gemm(x, weight.t(), {}, kernels), gemm(dy, weight, {}, kernels), grad};
  };
  at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  const Tensors expected = results(KernelChoice::kByTime);  // without a trial
  at::globalContext().setDeterministicAlgorithms(false, false);
  results(KernelChoice::kByTime);
  const Tensors fixed = results(KernelChoice::kFixed);
  for (size_t i = 0; i < fixed.size(); ++i) EXPECT_TRUE(at::equal(fixed[i], expected[i])) << "result " << i;
}

TEST_P(CudaKernel, BiasAndResidualAreAddedAsOnTheCpu) {
  for (const int64_t width : {5, 64}) {
    const Tensor y = random({7, width}), bias = random({width}), residual = random({7, width});
    const Tensor cpu = y.clone(), cuda = y.to(at::kCUDA);
    add_bias_residual_(cpu, bias, residual);
    add_bias_residual_(cuda, bias.to(at::kCUDA), residual.to(at::kCUDA));
    expect_same(cuda, cpu, fmt::format("width {}", width));
  }
}

}  // namespace
}  // namespace megalith::ops
