// Activations with and without a gate, a bias, and a weight per row.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "megalith/ops/norm_rope/activation.h"
#include "tests/ops/cuda/kernel_case.h"

namespace megalith::ops {
namespace {

using at::Tensor;

TEST_P(CudaKernel, ActivationsMatchTheCpu) {
  for (const auto activation : {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kQuickGelu,
                                Activation::kRelu, Activation::kSquaredRelu})
    for (const int64_t width : {3, 128, 2816}) {
      const std::string what = fmt::format("activation {}, width {}", static_cast<int>(activation), width);
      compare(
          {random({37, 2 * width})}, [&](const Tensors& in) { return Tensors{gated_activation(in[0], activation)}; },
          "gated " + what);
      compare(
          {random({37, width}), random({width})},
          [&](const Tensors& in) { return Tensors{bias_activation(in[0], in[1], activation)}; }, "biased " + what);
      compare(
          {random({37, width})}, [&](const Tensors& in) { return Tensors{bias_activation(in[0], {}, activation)}; },
          "plain " + what);
    }
}

TEST_P(CudaKernel, ActivationsWithAWeightPerRowMatchTheCpu) {
  for (const auto activation : {Activation::kSilu, Activation::kGeluTanh})
    for (const int64_t width : {3, 96, 768, 4096}) {
      const std::string what = fmt::format("weighted activation {}, width {}", static_cast<int>(activation), width);
      const Tensor x = random({37, 2 * width}), w = at::rand({37}, generator_, at::kFloat), dy = random({37, width});
      const auto run = [&](at::Device device, at::ScalarType dtype) {
        const auto leaf = [device](const Tensor& t, at::ScalarType type) {
          return t.to(device, type).detach().clone().requires_grad_();  // never the caller's own tensor
        };
        const Tensor in = leaf(x, dtype), weights = leaf(w, at::kFloat);
        const Tensor y = gated_activation(in, activation, weights);
        y.backward(dy.to(device, dtype));
        return Tensors{y.detach(), in.grad(), weights.grad()};
      };
      // The CPU's own rounding comes before the weights: held against fp32.
      const Tensors cpu = run(at::kCPU, at::kFloat), cuda = run(at::kCUDA, GetParam());
      for (size_t i = 0; i < cpu.size(); ++i)
        expect_same(cuda[i], i < 2 ? cpu[i].to(GetParam()) : cpu[i], fmt::format("{}, result {}", what, i));
    }
}

}  // namespace
}  // namespace megalith::ops
