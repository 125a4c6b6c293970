// Products of matrices against their definition in fp64. Those of cuBLASLt: cuda/gemm_test.cc.
#include "megalith/ops/gemm/gemm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "tests/ops/compare.h"

namespace megalith::ops {
namespace {

using at::Tensor;
using testing::expect_close;
using testing::random_tensor;
using testing::tolerance_of;

constexpr int64_t kM = 37, kK = 24, kN = 50;

Tensor wide(const Tensor& x) { return x.to(at::kDouble); }

TEST(Product, AddsABiasAndAResidual) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Tensor a = random_tensor({kM, kK}).to(dtype), weight = random_tensor({kN, kK}).to(dtype);
    const Tensor bias = random_tensor({kN}).to(dtype), residual = random_tensor({kM, kN}).to(dtype);
    const Tensor exact = wide(a).mm(wide(weight).t());
    const double tolerance = 2 * tolerance_of(dtype);
    expect_close(gemm(a, weight.t()), exact, tolerance);
    expect_close(gemm(a, weight.t(), {.bias = bias}), exact + wide(bias), tolerance);
    expect_close(gemm(a, weight.t(), {.residual = residual}), exact + wide(residual), tolerance);
    expect_close(gemm(a, weight.t(), {bias, residual}), exact + wide(bias) + wide(residual), tolerance);
    const Tensor all = at::full({2 * kM, kN}, 7, dtype);
    gemm_out(all.narrow(0, kM, kM), a, weight.t());
    expect_close(all.narrow(0, kM, kM), exact, tolerance);
    EXPECT_TRUE(all.narrow(0, 0, kM).eq(7).all().item<bool>());
  }
}

// Takes products, or leaves them, and remembers what it was asked.
class FakePlans final : public GemmPlans {
 public:
  explicit FakePlans(bool takes) : takes_(takes) {}
  bool run(const Tensor& out, const Tensor& /*a*/, const Tensor& /*b*/, const Addends& /*added*/, double beta,
           double /*alpha*/, KernelChoice choice) override {
    asked.emplace_back(beta, choice);
    if (takes_) out.fill_(5);
    return takes_;
  }

  std::vector<std::pair<double, KernelChoice>> asked;

 private:
  const bool takes_;
};

TEST(Product, GoesToThePlansOfItsOwnerFirst) {
  const Tensor a = random_tensor({kM, kK}).to(at::kFloat), b = random_tensor({kK, kN}).to(at::kFloat);
  for (const bool takes : {false, true}) {
    FakePlans plans(takes);
    const GemmKernels kernels{KernelChoice::kFixed, &plans};
    const Tensor exact = wide(a).mm(wide(b)), fives = at::full({kM, kN}, 5.0, at::kDouble);
    const Tensor out = at::zeros({kM, kN});
    gemm_out(out, a, b, kernels);
    expect_close(out, takes ? fives : exact, 1e-5);
    add_gemm(out, a, b, 1, 1, kernels);
    expect_close(out, takes ? fives : 2 * exact, 1e-5);
    expect_close(gemm(a, b, {}, kernels), exact, 1e-5);  // too small to be asked for
    const std::vector<std::pair<double, KernelChoice>> expected{{0, KernelChoice::kFixed}, {1, KernelChoice::kFixed}};
    EXPECT_EQ(plans.asked, expected);
  }
}

TEST(Product, LeavesWhatWasAskedForLast) {
  FakePlans plans(/*takes=*/true);
  {
    const SparedMultiprocessors outer(&plans, 16);
    EXPECT_EQ(plans.spared(), 16);
    {
      const SparedMultiprocessors inner(&plans, 0), of_none(nullptr, 8);
      EXPECT_EQ(plans.spared(), 0);
    }
    EXPECT_EQ(plans.spared(), 16);
  }
  EXPECT_EQ(plans.spared(), 0);
}

TEST(Product, LargeOnesGoToThePlans) {
  FakePlans plans(/*takes=*/true);
  const Tensor a = at::empty({1 << 11, 1 << 11}), b = at::empty({1 << 11, 1 << 11});
  EXPECT_TRUE(gemm(a, b, {}, {KernelChoice::kByTime, &plans}).eq(5).all().item<bool>());
}

TEST(AddProduct, OfOneTypeAndInto32Bits) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const double beta : {0.0, 1.0, 0.5})
      for (const double alpha : {1.0, 0.25}) {
        const Tensor dy = random_tensor({kK, kM}).to(dtype), x = random_tensor({kK, kN}).to(dtype);
        const Tensor start = beta == 0 ? at::full({kM, kN}, NAN) : random_tensor({kM, kN}).to(at::kFloat);
        const Tensor into = start.clone();
        add_gemm(into, dy.t(), x, beta, alpha);
        Tensor exact = alpha * wide(dy).t().mm(wide(x));
        if (beta != 0) exact = exact + beta * wide(start);
        expect_close(into, exact, tolerance_of(dtype));
      }
}

}  // namespace
}  // namespace megalith::ops
