// Products of matrices against their definition in fp64. Those of cuBLASLt: cuda_kernels_test.cc.
#include "megalith/ops/gemm/product.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/ops/compare.h"

namespace megalith::ops {
namespace {

using at::Tensor;
using testing::expect_close;
using testing::random_tensor;
using testing::tolerance_of;

constexpr int64_t kM = 37, kK = 24, kN = 50;

Tensor wide(const Tensor& x) { return x.to(at::kDouble); }

TEST(Product, WithWhatIsAdded) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Tensor a = random_tensor({kM, kK}).to(dtype), weight = random_tensor({kN, kK}).to(dtype);
    const Tensor bias = random_tensor({kN}).to(dtype), residual = random_tensor({kM, kN}).to(dtype);
    const Tensor exact = wide(a).mm(wide(weight).t());
    const double tolerance = 2 * tolerance_of(dtype);
    expect_close(product(a, weight.t()), exact, tolerance);
    expect_close(product(a, weight.t(), {.bias = bias}), exact + wide(bias), tolerance);
    expect_close(product(a, weight.t(), {.residual = residual}), exact + wide(residual), tolerance);
    expect_close(product(a, weight.t(), {bias, residual}), exact + wide(bias) + wide(residual), tolerance);
    const Tensor all = at::full({2 * kM, kN}, 7, dtype);
    product_out(all.narrow(0, kM, kM), a, weight.t());
    expect_close(all.narrow(0, kM, kM), exact, tolerance);
    EXPECT_TRUE(all.narrow(0, 0, kM).eq(7).all().item<bool>());
  }
}

TEST(AddProduct, OfOneTypeAndInto32Bits) {
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    for (const double beta : {0.0, 1.0, 0.5})
      for (const double alpha : {1.0, 0.25}) {
        const Tensor dy = random_tensor({kK, kM}).to(dtype), x = random_tensor({kK, kN}).to(dtype);
        const Tensor start = beta == 0 ? at::full({kM, kN}, NAN) : random_tensor({kM, kN}).to(at::kFloat);
        const Tensor into = start.clone();
        add_product(into, dy.t(), x, beta, alpha);
        Tensor exact = alpha * wide(dy).t().mm(wide(x));
        if (beta != 0) exact = exact + beta * wide(start);
        expect_close(into, exact, tolerance_of(dtype));
      }
}

}  // namespace
}  // namespace megalith::ops
