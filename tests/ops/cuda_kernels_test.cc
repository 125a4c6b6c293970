// The CUDA kernels against their CPU twins: values and all gradients, fp32 and bf16. Skipped without a GPU.
#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

#include "megalith/ops/activation.h"
#include "megalith/ops/adam.h"
#include "megalith/ops/cross_entropy.h"
#include "megalith/ops/flat.h"
#include "megalith/ops/norm.h"
#include "megalith/ops/residual.h"
#include "megalith/ops/rope.h"
#include "tests/ops/compare.h"
#include "tests/support/run_ranks.h"

namespace megalith::ops {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;
using Operation = std::function<Tensors(const Tensors&)>;

class CudaKernel : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    if (!at::hasCUDA() || at::detail::getCUDAHooks().deviceCount() == 0) GTEST_SKIP() << "no GPU";
  }

  Tensor random(at::IntArrayRef sizes) { return (at::randn(sizes, generator_, at::kFloat) * 0.7).to(GetParam()); }

  // max|a-b| <= tolerance * max|b|
  static void expect_same(const Tensor& cuda, const Tensor& cpu, const std::string& what) {
    ASSERT_EQ(cuda.defined(), cpu.defined()) << what;
    if (!cpu.defined() || cpu.numel() == 0) return;
    const double tolerance = cpu.scalar_type() == at::kFloat ? 1e-5 : 1.6e-2;
    const Tensor a = cuda.cpu().to(at::kDouble), b = cpu.to(at::kDouble);
    const double difference = (a - b).abs().max().item<double>(), scale = b.abs().max().item<double>();
    EXPECT_LE(difference, tolerance * std::max(scale, 1e-3)) << what;
  }

  // Runs `operation` and the backward of its outputs on both devices.
  void compare(const Tensors& inputs, const Operation& operation, const std::string& what) {
    const auto run = [&](at::Device device, uint64_t seed) {
      Tensors leaves, results;
      for (const Tensor& input : inputs) {
        Tensor leaf = input.to(device).detach().clone();
        if (leaf.is_floating_point()) leaf.set_requires_grad(true);
        leaves.push_back(leaf);
      }
      at::Generator generator = at::detail::createCPUGenerator(seed);
      Tensor sum = at::zeros({}, at::TensorOptions(device).dtype(at::kDouble));
      for (const Tensor& out : operation(leaves)) {
        results.push_back(out.detach().clone());
        const Tensor weight = at::randn(out.sizes(), generator, at::kFloat).to(device);
        if (out.requires_grad()) sum = sum + (out.to(at::kFloat) * weight).sum().to(at::kDouble);
      }
      sum.backward();
      for (const Tensor& leaf : leaves) results.push_back(leaf.is_floating_point() ? leaf.grad() : Tensor());
      return results;
    };
    const Tensors cpu = run(at::kCPU, 3), cuda = run(at::kCUDA, 3);
    ASSERT_EQ(cpu.size(), cuda.size());
    for (size_t i = 0; i < cpu.size(); ++i) expect_same(cuda[i], cpu[i], what + ", result " + std::to_string(i));
  }

  at::Generator generator_ = at::detail::createCPUGenerator(7);
};

TEST_P(CudaKernel, Norms) {
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

TEST_P(CudaKernel, Activations) {
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

TEST_P(CudaKernel, Heads) {
  struct Case {
    int64_t head_dim, rotary_dim;
    bool interleaved;
  };
  for (const Case c : {Case{64, 64, false}, Case{128, 128, false}, Case{96, 96, false}, Case{256, 64, false},
                       Case{64, 32, true}, Case{24, 24, false}, Case{10, 4, false}})
    for (const bool with_norms : {false, true}) {
      const int64_t t = 19, n = 6, g = 2;
      const auto run = [&](const Tensors& in) {
        const RopeAngles angles = rope_angles({.rotary_dim = c.rotary_dim, .interleaved = c.interleaved},
                                              SequenceLayout::packed({12, 7}), in[0].device());
        const NormWeights q{NormKind::kRms, in[1], {}, 1e-6}, k{NormKind::kRms, in[2], {}, 1e-6};
        const auto [a, b, v] =
            split_qkv(in[0], {n, g, c.head_dim}, angles, with_norms ? &q : nullptr, with_norms ? &k : nullptr);
        return Tensors{a, b, v};
      };
      compare({random({t, (n + 2 * g) * c.head_dim}), random({c.head_dim}), random({c.head_dim})}, run,
              fmt::format("heads of {}, {} rotated, interleaved {}, norms {}", c.head_dim, c.rotary_dim, c.interleaved,
                          with_norms));
    }
}

TEST_P(CudaKernel, CrossEntropy) {
  const auto worlds = comm::World::in_process(1);
  for (const int64_t vocab : {3, 512, 1001, 50304})
    for (const double smoothing : {0.0, 0.1}) {
      const CrossEntropyOptions options{.label_smoothing = smoothing, .z_loss = 1e-3};
      const int64_t t = 21, padded = vocab + 8 - vocab % 8;
      Tensor labels = at::randint(vocab, {t}, generator_, at::kLong);
      labels[4] = options.ignore_index;
      const auto run = [&](const Tensors& in) {
        return Tensors{cross_entropy(in[0] * 4, in[1], {0, vocab, vocab}, worlds[0]->world(), options)};
      };
      compare({random({t, padded}), labels}, run, fmt::format("vocabulary {}, smoothing {}", vocab, smoothing));
    }
}

TEST_P(CudaKernel, UpdatesAndNorms) {
  for (const int64_t n : {1, 64, 1003, 70000}) {
    const Tensor main = at::randn({n}, generator_, at::kFloat), grad = random({n}),
                 m = at::randn({n}, generator_, at::kFloat), v = at::rand({n}, generator_, at::kFloat);
    const auto run = [&](at::Device device) {
      UpdateTensors t{main.to(device).clone(), grad.to(device).clone(), m.to(device).clone(), v.to(device).clone(), {}};
      if (GetParam() != at::kFloat) t.param = grad.to(device).clone();
      const UpdateScalars scalars{.lr = 1e-2, .weight_decay = 0.1, .grad_scale = 0.5, .step = 3};
      adam_update(t, {}, scalars);
      Tensors results{t.main, t.exp_avg, t.exp_avg_sq, t.param};
      sgd_update(t, {}, scalars);
      results.insert(results.end(), {t.main, t.exp_avg, t.param});
      return results;
    };
    const Tensors cpu = run(at::kCPU), cuda = run(at::kCUDA);
    for (size_t i = 0; i < cpu.size(); ++i) expect_same(cuda[i], cpu[i], fmt::format("{} elements, {}", n, i));
    ExactSum on_cpu, on_cuda;
    add_squares(grad, on_cpu);
    const Tensors both{grad.to(at::kCUDA), grad.to(at::kCUDA)};
    add_squares(both, on_cuda);
    EXPECT_NEAR(on_cuda.value(), 2 * on_cpu.value(), 1e-12 * on_cuda.value());
  }
}

TEST_P(CudaKernel, Residual) {
  for (const int64_t width : {5, 64}) {
    const Tensor y = random({7, width}), bias = random({width}), residual = random({7, width});
    const Tensor cpu = y.clone(), cuda = y.to(at::kCUDA);
    add_bias_residual_(cpu, bias, residual);
    add_bias_residual_(cuda, bias.to(at::kCUDA), residual.to(at::kCUDA));
    expect_same(cuda, cpu, fmt::format("width {}", width));
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaKernel, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& test) { return std::string(test.param == at::kFloat ? "fp32" : "bf16"); });

}  // namespace
}  // namespace megalith::ops
