// Gradients that are sums over rows: of a bias, and of the rows of an embedding.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "megalith/ops/kernel/grad_target.h"
#include "megalith/ops/update/gradient_sums.h"
#include "tests/ops/cuda/kernel_case.h"

namespace megalith::ops {
namespace {

using at::Tensor;

TEST_P(CudaKernel, SumsOfGradientsMatchTheCpu) {
  for (const int64_t t : {1, 37, 5000})
    for (const int64_t h : {5, 64, 2304}) {
      const Tensor dy = random({t, h}), sum = at::randn({h}, generator_, at::kFloat);
      const std::string what = fmt::format("{} x {}", t, h);
      expect_same(bias_grad(dy.to(at::kCUDA)), bias_grad(dy), "bias, " + what);
      for (const bool fresh : {true, false}) {
        bool stale = fresh;
        const GradTarget target{sum.to(at::kCUDA), &stale};
        EXPECT_FALSE(bias_grad(dy.to(at::kCUDA), target).defined());
        EXPECT_FALSE(stale);
        expect_same(target.sum, dy.to(at::kFloat).sum(0) + (fresh ? at::zeros_like(sum) : sum), "target, " + what);
      }
      const Tensor rows = at::randint(7, {t}, generator_, at::kLong), table = at::randn({7, h}, generator_, at::kFloat);
      const Tensor cuda = table.to(at::kCUDA);
      add_to_rows_(table, rows, dy);
      add_to_rows_(cuda, rows.to(at::kCUDA), dy.to(at::kCUDA));
      expect_same(cuda, table, "rows, " + what);
    }
}

}  // namespace
}  // namespace megalith::ops
