// The CUDA kernels against their CPU twins: values and all gradients, fp32 and bf16. Skipped without a GPU.
#include <ATen/ATen.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "megalith/ops/attention/attention.h"
#include "megalith/ops/gemm/fp8.h"
#include "megalith/ops/gemm/fp8_blocks.h"
#include "megalith/ops/gemm/gemm.h"
#include "megalith/ops/gemm/grouped_gemm.h"
#include "megalith/ops/kernel/counter_normal.h"
#include "megalith/ops/kernel/host_values.h"
#include "megalith/ops/loss/cross_entropy.h"
#include "megalith/ops/moe/permute.h"
#include "megalith/ops/moe/top_experts.h"
#include "megalith/ops/norm_rope/activation.h"
#include "megalith/ops/norm_rope/dropout.h"
#include "megalith/ops/norm_rope/norm.h"
#include "megalith/ops/norm_rope/rope.h"
#include "megalith/ops/update/adam.h"
#include "megalith/ops/update/flat_buffer.h"
#include "megalith/ops/update/gradient_sums.h"
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

TEST_P(CudaKernel, WeightedRowsOfActivations) {
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

// Large enough for cuBLASLt, in the four ways in which linear layers call it.
TEST_P(CudaKernel, LargeProducts) {
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

// Whatever a trial has chosen: the kernels of replicated weights are those of every other process.
TEST_P(CudaKernel, FixedKernelsOfProductsDoNotDependOnTrials) {
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

TEST_P(CudaKernel, Attention) {
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

TEST_P(CudaKernel, CrossEntropyWithItsGradient) {
  const auto worlds = comm::World::in_process(1);
  for (const int64_t vocab : {3, 1001, 50304, 200003})
    for (const double smoothing : {0.0, 0.1}) {
      const CrossEntropyOptions options{.label_smoothing = smoothing, .z_loss = 1e-3};
      const int64_t t = 21, padded = vocab + 8 - vocab % 8;
      Tensor labels = at::randint(vocab, {t}, generator_, at::kLong);
      labels[4] = options.ignore_index;
      const Tensor logits = random({t, padded}) * 4;
      const auto run = [&](at::Device device) {
        const Tensor x = logits.to(device).clone();
        const Tensor loss =
            cross_entropy_with_grad_(x, labels.to(device), {0, vocab, vocab}, worlds[0]->world(), options, 0.25);
        return Tensors{loss, x};
      };
      const Tensors cpu = run(at::kCPU), cuda = run(at::kCUDA);
      for (size_t i = 0; i < cpu.size(); ++i)
        expect_same(cuda[i], cpu[i], fmt::format("vocabulary {}, smoothing {}, {}", vocab, smoothing, i));
    }
}

TEST_P(CudaKernel, Rows) {
  for (const int64_t h : {5, 64, 2048}) {
    const int64_t t = 19, k = 3;
    const Tensor order = at::randperm(t * k, generator_, at::kLong);
    Tensor row = at::empty_like(order);
    row.scatter_(0, order, at::arange(t * k, at::kLong));
    const RowMap map{order.div(k, "floor"), row.view({t, k}), true};
    compare(
        {random({t, h}), random({t * k, h}), at::rand({t, k}, generator_, at::kFloat), random({t, h})},
        [&](const Tensors& in) {
          const RowMap here = map.to(in[0].device());
          return Tensors{copy_rows(in[0], here), sum_rows(in[1], in[2], here, in[3]), sum_rows(in[1], {}, here)};
        },
        fmt::format("rows of {}", h));
  }
}

TEST_P(CudaKernel, GradientSums) {
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

TEST_P(CudaKernel, NormsAddToTheirTargets) {
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

TEST_P(CudaKernel, ScaleAndCheck) {
  for (const int64_t n : {3, 1003, 70000})
    for (const double factor : {1.0, 0.25}) {
      const Tensor flat = random({n}), cuda = flat.to(at::kCUDA);
      EXPECT_TRUE(scale_and_check_(cuda, factor));
      expect_same(cuda, flat * factor, fmt::format("{} elements times {}", n, factor));
      cuda[n / 2] = std::numeric_limits<double>::quiet_NaN();
      EXPECT_FALSE(scale_and_check_(cuda, factor));
    }
}

// The same bits as on the host, of any rectangle.
TEST_P(CudaKernel, CounterNormal) {
  const CountedRectangle where{.columns = 3001, .first_row = 17, .first_column = 5};
  const Tensor cpu = at::empty({700, 1501}, GetParam()), cuda = at::empty({700, 1501}, cpu.options().device(at::kCUDA));
  fill_counter_normal(cpu, 12345, where, 0.5, 0.02);
  fill_counter_normal(cuda, 12345, where, 0.5, 0.02);
  EXPECT_TRUE(at::equal(cuda.cpu(), cpu));
}

Tensor bytes_of(const Tensor& t) { return t.view(at::kByte).cpu(); }

TEST_P(CudaKernel, Fp8) {
  for (const Fp8Kind kind : {Fp8Kind::kE4m3, Fp8Kind::kE5m2})
    for (const auto& [r, c] : std::vector<std::pair<int64_t, int64_t>>{{16, 16}, {144, 80}, {256, 1024}}) {
      const Tensor x = random({r, c}) * 3, w = random({96, c});
      const Fp8Matrix cpu = to_fp8(x, {.kind = kind}), cuda = to_fp8(x.to(at::kCUDA), {.kind = kind});
      const std::string what = fmt::format("{} x {}", r, c);
      EXPECT_NEAR(cuda.inverse_scale.item<float>() / cpu.inverse_scale.item<float>(), 1, 1e-6) << what;
      EXPECT_TRUE(at::equal(bytes_of(cuda.rows).t(), bytes_of(cuda.columns))) << what;
      // The scale's last bit may move a number to the neighbour.
      EXPECT_LE(bytes_of(cuda.rows).ne(bytes_of(cpu.rows)).sum().item<int64_t>(), 1 + r * c / 1000) << what;
      const Fp8Matrix wc = to_fp8(w, {}), wd = to_fp8(w.to(at::kCUDA), {});
      expect_same(fp8_mm(cuda.rows, cuda.inverse_scale, wd.rows, wd.inverse_scale, at::kBFloat16, false),
                  fp8_mm(cpu.rows, cpu.inverse_scale, wc.rows, wc.inverse_scale, at::kBFloat16, false),
                  "product " + what);
      // A given scale, and what was seen.
      const Tensor scale = at::full({1}, 50.0), seen = at::zeros({1}, at::TensorOptions(at::kCUDA));
      const Fp8Matrix given = to_fp8(x.to(at::kCUDA), {.kind = kind, .scale = scale.to(at::kCUDA), .seen = seen});
      EXPECT_TRUE(bytes_of(given.rows).equal(bytes_of(to_fp8(x, {.kind = kind, .scale = scale}).rows))) << what;
      EXPECT_EQ(seen.item<double>(), x.abs().max().item<double>()) << what;
      const Fp8Matrix columns =
          to_fp8(x.to(at::kCUDA), {.kind = kind, .rows = false, .scale = cuda.scale, .seen = seen});
      EXPECT_TRUE(bytes_of(columns.columns).equal(bytes_of(cuda.columns))) << what;
    }
}

TEST_P(CudaKernel, Fp8InBlocks) {
  const Tensor x = random({256, 1024}), w = random({512, 1024}), dy = random({256, 512});
  const auto run = [&](at::Device device) {
    const Fp8Matrix x8 = to_fp8_blocks(x.to(device), Fp8Kind::kE4m3, Fp8Blocks::kStrips),
                    w8 = to_fp8_blocks(w.to(device), Fp8Kind::kE4m3, Fp8Blocks::kSquares),
                    dy8 = to_fp8_blocks(dy.to(device), Fp8Kind::kE5m2, Fp8Blocks::kStrips);
    Tensors results;
    for (const Fp8Matrix& each : {x8, w8, dy8})
      for (const Tensor& part : {each.rows, each.columns}) results.push_back(bytes_of(part));
    for (const Fp8Matrix& each : {x8, w8, dy8})
      for (const Tensor& part : {each.inverse_scale, each.columns_inverse_scale}) results.push_back(part.cpu());
    results.push_back(fp8_mm(x8.rows, x8.inverse_scale, w8.rows, w8.inverse_scale, at::kBFloat16, true));
    results.push_back(fp8_mm(dy8.rows, dy8.inverse_scale, w8.columns, w8.columns_inverse_scale, at::kBFloat16, false));
    results.push_back(at::zeros({512, 1024}, at::TensorOptions(device)));
    fp8_mm_out(results.back(), dy8.columns, dy8.columns_inverse_scale, x8.columns, x8.columns_inverse_scale);
    return results;
  };
  const Tensors cpu = run(at::kCPU), cuda = run(at::kCUDA);
  for (size_t i = 0; i < 12; ++i) EXPECT_TRUE(cuda[i].equal(cpu[i])) << i;
  for (size_t i = 12; i < cpu.size(); ++i) expect_same(cuda[i], cpu[i].to(at::kBFloat16), fmt::format("product {}", i));
}

TEST_P(CudaKernel, HeadsThatStayWhereTheyAre) {
  const int64_t t = 19, n = 6, g = 2, d = 64;
  compare(
      {random({t, (n + 2 * g) * d})},
      [&](const Tensors& in) {
        const auto [q, k, v] = split_qkv(in[0], {n, g, d}, {}, nullptr, nullptr);
        return Tensors{q * 2, k, v};
      },
      "heads without rotation");
}

TEST_P(CudaKernel, GroupedProducts) {
  const int64_t r = 33, i = 64, o = 128;
  const Tensor x = random({r, i}), w = random({4, o, i}), dy = random({r, o});
  const auto run = [&](at::Device device, bool known_there) {
    const GroupCounts counts =
        known_there ? GroupCounts::on_device(at::tensor({5, 5, 22, 33}, at::TensorOptions(at::kInt).device(device)))
                    : GroupCounts{5, 0, 17, 11};
    const Tensor dw = at::ones({4, o, i}, at::TensorOptions(device)), fresh = at::full_like(dw, 7);
    grouped_weight_grad(dw, dy.to(device), x.to(device), counts, 1);
    grouped_weight_grad(fresh, dy.to(device), x.to(device), counts, 0);
    return Tensors{grouped_mm_transposed(x.to(device), w.to(device), counts),
                   grouped_mm(dy.to(device), w.to(device), counts), dw, fresh};
  };
  const Tensors cpu = run(at::kCPU, false);
  for (const bool known_there : {false, true}) {
    const Tensors cuda = run(at::kCUDA, known_there);
    for (size_t n = 0; n < cpu.size(); ++n) {
      const Tensor rounded = GetParam() == at::kFloat ? cpu[n] : cpu[n].to(at::kBFloat16);
      expect_same(cuda[n], rounded, fmt::format("product {}, counts on the device: {}", n, known_there));
    }
  }
}

TEST_P(CudaKernel, ProductsOfGroups) {
  const GroupCounts counts{0, 9, 0, 11};
  for (const int64_t i : {8, 5, 520})
    for (const double beta : {0.0, 1.0, 0.5}) {
      const Tensor products = at::randn({4, 3, i}, generator_, at::kFloat).to(at::kBFloat16),
                   before = random({4, 3, i});
      for (const int64_t empty : {0, 2}) products[empty].fill_(NAN);
      const auto run = [&](at::Device device) {
        const Tensor dw = before.to(device, before.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
        const GroupCounts own(counts.on_host());
        add_group_products(dw, products.to(device, at::kBFloat16, /*non_blocking=*/false, /*copy=*/true), own, beta);
        return dw;
      };
      expect_same(run(at::kCUDA), run(at::kCPU), fmt::format("{} columns, beta {}", i, beta));
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

// What the device finds out for itself: the norm, its factor, and whether there is an update at all.
TEST_P(CudaKernel, GatedUpdates) {
  const ClipSettings clip{.unscale = 0.5, .clip = 1};
  for (const float odd : {1.0F, INFINITY, NAN}) {
    const int64_t n = 4096;
    const Tensor main = at::randn({n}, generator_, at::kFloat), grad = random({n});
    grad[7] = odd;
    const auto run = [&](at::Device device) {
      UpdateTensors t{
          main.to(device).clone(), grad.to(device).clone(), at::zeros({n}, device), at::zeros({n}, device), {}};
      const Tensor sum = sum_of_squares(t.grad);
      EXPECT_EQ(sum.dim(), 0);
      EXPECT_EQ(std::isfinite(HostScalar(sum).value()), std::isfinite(odd));
      t.gate = clip_gate(std::vector{sum, sum}, clip);
      adam_update(t, {}, {.lr = 1e-2, .grad_scale = NAN});
      return Tensors{t.gate, t.main, t.exp_avg, t.exp_avg_sq};
    };
    const Tensors cpu = run(at::kCPU), cuda = run(at::kCUDA);
    for (size_t i = 0; i < cpu.size(); ++i) expect_same(cuda[i], cpu[i], fmt::format("{}, tensor {}", odd, i));
    EXPECT_EQ(cuda[0][1].item<float>(), std::isfinite(odd) ? 1 : 0);
    EXPECT_EQ(cuda[1].cpu().equal(main), !std::isfinite(odd));
  }
}

TEST_P(CudaKernel, AdamOverRuns) {
  const int64_t n = 64 * 300;
  std::vector<UpdateRun> runs;  // with padding behind each of them
  for (int64_t i = 0; i < 150; ++i)
    runs.push_back({128 * i,
                    128 * i + 100 + i % 27,
                    {.lr = 1e-2 * static_cast<double>(1 + i % 3),
                     .weight_decay = i % 2 == 0 ? 0.1 : 0.0,
                     .grad_scale = 0.5,
                     .step = 3}});
  Tensor inside = at::zeros({n}, at::kFloat);
  for (const UpdateRun& run : runs) inside.narrow(0, run.begin, run.end - run.begin).fill_(1);
  const Tensor main = at::randn({n}, generator_, at::kFloat) * inside, grad = random({n}) * inside.to(GetParam()),
               m = at::randn({n}, generator_, at::kFloat) * inside, v = at::rand({n}, generator_, at::kFloat) * inside;
  const auto run = [&](at::Device device) {
    UpdateTensors t{main.to(device).clone(), grad.to(device).clone(), m.to(device).clone(), v.to(device).clone(), {}};
    if (GetParam() != at::kFloat) t.param = at::zeros_like(t.grad);
    adam_update_runs(t, {}, runs);
    return Tensors{t.main, t.exp_avg, t.exp_avg_sq, t.param};
  };
  const Tensors cpu = run(at::kCPU), cuda = run(at::kCUDA);
  for (size_t i = 0; i < cpu.size(); ++i) expect_same(cuda[i], cpu[i], fmt::format("tensor {}", i));
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

TEST_P(CudaKernel, ChoiceOfExperts) {
  using Score = ExpertChoice::Score;
  for (const int64_t experts : {8, 64, 96, 256, 512})
    for (const auto score : {Score::kSoftmaxOfChosen, Score::kSoftmax, Score::kSigmoid})
      for (const bool grouped : {false, true}) {
        ExpertChoice choice{.topk = 6, .score = score, .normalize = score == Score::kSigmoid, .scaling = 1.5};
        if (grouped) {
          choice.groups = 8;
          choice.group_topk = 6;
          choice.group_best = experts == 8 ? 1 : 2;
        }
        const std::string what =
            fmt::format("{} experts, score {}, grouped {}", experts, static_cast<int>(score), grouped);
        const Tensor logits = random({33, experts}), bias = at::randn({experts}, generator_, at::kFloat) * 0.1;
        const Tensor decided = top_experts(logits, choice, bias).experts;
        compare(
            {logits},
            [&](const Tensors& in) {
              return Tensors{top_experts(in[0], choice, {}, decided.to(in[0].device())).weights};
            },
            what + ", decided");
        if (GetParam() != at::kFloat) continue;  // scores tie
        compare(
            {logits},
            [&](const Tensors& in) {
              const auto [chosen, weights] = top_experts(in[0], choice, bias.to(in[0].device()));
              EXPECT_TRUE(chosen.cpu().equal(decided)) << what;
              return Tensors{weights};
            },
            what);
      }
}

// Softmax over at most 8 experts, without a bias, has a kernel of its own; a bias of zeros is for the general one.
TEST_P(CudaKernel, PlainChoiceOfExperts) {
  for (const int64_t experts : {32, 64, 128, 256})
    for (const int64_t k : {1, 5, 8}) {
      const std::string what = fmt::format("{} of {} experts", k, experts);
      const ExpertChoice choice{.topk = k, .scaling = 1.5};
      const Tensor logits = random({1027, experts});
      if (GetParam() == at::kFloat)  // others tie
        compare(
            {logits},
            [&](const Tensors& in) {
              const auto [chosen, weights] = top_experts(in[0], choice, {});
              EXPECT_TRUE(chosen.cpu().equal(top_experts(logits, choice, {}).experts)) << what;
              return Tensors{weights};
            },
            what);
      Tensor tied = (logits * 3).round_();  // zeros of both signs
      tied[1].fill_(2);
      tied[2].slice(0, k / 2).fill_(NAN);
      tied[3].slice(0, k).fill_(-INFINITY);
      tied[4].fill_(-INFINITY);
      const Tensor there = tied.to(at::kCUDA), zeros = at::zeros({experts}, there.options().dtype(at::kFloat));
      const TopExperts plain = top_experts(there, choice, {}), general = top_experts(there, choice, zeros);
      EXPECT_TRUE(plain.experts.equal(general.experts)) << what;
      EXPECT_TRUE(plain.weights.allclose(general.weights, 1e-5, 1e-6, /*equal_nan=*/true)) << what;
    }
}

TEST_P(CudaKernel, SortedChoices) {
  for (const int64_t t : {1, 100, 3000})
    for (const int64_t experts : {3, 64, 300, 2000}) {
      const Tensor chosen = at::randint(experts, {t, 3}, generator_, at::kLong);
      const SortedChoices cpu = sort_choices(chosen, experts), cuda = sort_choices(chosen.to(at::kCUDA), experts);
      const std::string what = fmt::format("{} tokens, {} experts", t, experts);
      EXPECT_TRUE(cuda.map.token.cpu().equal(cpu.map.token)) << what;
      EXPECT_TRUE(cuda.map.row.cpu().equal(cpu.map.row)) << what;
      EXPECT_TRUE(cuda.first.cpu().equal(cpu.first)) << what;
    }
}

// The generator's state decides, gradients pass where the input did, and the shares are right.
TEST_P(CudaKernel, Dropout) {
  at::Generator generator = at::detail::getCUDAHooks().getDefaultGenerator(0);
  const Tensor state = generator.get_state();
  for (const int64_t n : {5, 64, 1000, 100003}) {
    const Tensor x = at::ones({n}, at::TensorOptions(at::kCUDA).dtype(GetParam())).requires_grad_();
    const Tensor r = random({n}).to(at::kCUDA).requires_grad_(), weight = random({n}).to(at::kCUDA);
    generator.set_state(state);
    const Tensor y = dropout(x, 0.3, generator), other = dropout(x, 0.3, generator);
    generator.set_state(state);
    const Tensor sum = dropout_add(x, r, 0.3, generator);
    EXPECT_TRUE(sum.equal(r + y));
    const Tensor kept = y.detach().ne(0).to(at::kFloat);
    if (n > 100) {
      EXPECT_FALSE(y.equal(other));
    }
    EXPECT_NEAR(kept.mean().item<double>(), 0.7, 5 * std::sqrt(0.21 / static_cast<double>(n)));
    (sum * weight).sum().backward();
    expect_same(x.grad(), (y.detach() * weight).cpu(), fmt::format("gradient of {}", n));
    EXPECT_TRUE(r.grad().equal(weight));
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, CudaKernel, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& test) { return std::string(test.param == at::kFloat ? "fp32" : "bf16"); });

}  // namespace
}  // namespace megalith::ops
