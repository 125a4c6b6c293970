// RMSNorm and LayerNorm, alone, forked and after an addition, with gradients that go to targets.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "megalith/ops/kernel/grad_target.h"
#include "megalith/ops/norm_rope/norm.h"
#include "tests/ops/cuda/kernel_case.h"

namespace megalith::ops {
namespace {

using at::Tensor;

TEST_P(CudaKernel, NormsMatchTheCpu) {
  for (const int64_t width : {5, 64, 768, 2048, 4096, 8200, 16384})
    for (const int64_t rows : {1, 33}) {
      const std::string what = fmt::format("rows {} x {}", rows, width);
      for (const bool centered : {false, true}) {
        const auto weights = [&](const Tensors& in) {
          return NormWeights{centered ? NormKind::kLayer : NormKind::kRms, in[1], centered ? in[2] : Tensor(), 1e-5};
        };
        const Tensors inputs{random({rows, width}), random({width}), random({width}), random({rows, width})};
        compare(
            inputs, [&](const Tensors& in) { return Tensors{norm(in[0], weights(in))}; }, "norm, " + what);
        compare(
            inputs,
            [&](const Tensors& in) {
              const auto [x, y] = norm_fork(in[0], weights(in));
              return Tensors{x * 2, y};
            },
            "norm_fork, " + what);
        compare(
            inputs,
            [&](const Tensors& in) {
              const auto [x, y] = add_norm(in[0], in[3], weights(in));
              return Tensors{x * 2, y};
            },
            "add_norm, " + what);
      }
    }
}

// The residual stream is in fp32, the branches are in the test's dtype.
TEST_P(CudaKernel, NormsOfAWideStreamMatchTheCpu) {
  for (const int64_t width : {5, 100, 768, 2048, 4096, 8200})
    for (const bool centered : {false, true}) {
      const Tensors inputs{random({33, width}).to(at::kFloat), random({width}), random({width}), random({33, width})};
      const auto operation = [&](const Tensors& in) {
        const NormKind kind = centered ? NormKind::kLayer : NormKind::kRms;
        const NormWeights weights{kind, in[1], centered ? in[2] : Tensor(), 1e-5, false, {}, {}, GetParam()};
        const auto [r, y] = add_norm(in[0], in[3], weights);
        return Tensors{r * 2, y, norm(in[0], weights)};
      };
      compare(inputs, operation, fmt::format("width {}, centered {}", width, centered));
    }
}

TEST_P(CudaKernel, NormsAddTheirGradientsToTargets) {
  const int64_t t = 33, h = 768;
  const Tensor x = random({t, h}), w = random({h}), b = random({h}), dy = random({t, h});
  const Tensor cpu_w = w.clone().set_requires_grad(true), cpu_b = b.clone().set_requires_grad(true);
  norm(x, {NormKind::kLayer, cpu_w, cpu_b, 1e-5}).backward(dy);
  const Tensor cuda_w = w.to(at::kCUDA).set_requires_grad(true), cuda_b = b.to(at::kCUDA).set_requires_grad(true);
  bool stale_w = true, stale_b = false;
  const GradTarget to_w{at::ones({h}, at::TensorOptions(at::kCUDA)), &stale_w},
      to_b{at::ones({h}, at::TensorOptions(at::kCUDA)), &stale_b};
  norm(x.to(at::kCUDA), {NormKind::kLayer, cuda_w, cuda_b, 1e-5, false, to_w, to_b}).backward(dy.to(at::kCUDA));
  EXPECT_FALSE(cuda_w.grad().defined());
  EXPECT_FALSE(cuda_b.grad().defined());
  expect_same(to_w.sum, cpu_w.grad(), "weight");
  expect_same(to_b.sum - 1, cpu_b.grad(), "bias");
}

}  // namespace
}  // namespace megalith::ops
