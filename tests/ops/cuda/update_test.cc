// Adam and SGD on flat buffers, the sums of squares and factors that they depend on, and the check of scaled gradients.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "megalith/base/exact_sum.h"
#include "megalith/ops/kernel/host_values.h"
#include "megalith/ops/update/adam.h"
#include "megalith/ops/update/flat_buffer.h"
#include "megalith/ops/update/stored_values.h"
#include "tests/ops/cuda/kernel_case.h"

namespace megalith::ops {
namespace {

using at::Tensor;

TEST_P(CudaKernel, UpdatesAndSumsOfSquaresMatchTheCpu) {
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

// State in fewer bits has the same bits on both devices, and so has what is read back.
TEST_P(CudaKernel, StoredValuesMatchTheCpu) {
  for (const at::ScalarType format : {at::kHalf, at::kFloat8_e4m3fn, at::kShort})
    for (const int64_t n : {64, 70016}) {
      const Tensor numbers = at::randn({n}, generator_, at::kFloat) * at::exp(at::randn({n}, generator_, at::kFloat));
      const auto run = [&](at::Device device) {
        StoredValues stored{.values = at::zeros({n}, at::TensorOptions(device).dtype(format))};
        if (has_scales(format)) stored.scales = at::zeros({n / kScaleBlock}, device);
        if (format == at::kShort) stored.high = at::zeros({n}, at::TensorOptions(device).dtype(at::kBFloat16));
        write_values(numbers.to(device), stored);
        const Tensor back = at::empty({n}, device);
        read_values(stored, back);
        return Tensors{stored.values.view(format == at::kFloat8_e4m3fn ? at::kByte : at::kShort), stored.scales,
                       stored.high, back};
      };
      const Tensors cpu = run(at::kCPU), cuda = run(at::kCUDA);
      for (size_t i = 0; i < cpu.size(); ++i)
        if (cpu[i].defined()) {
          EXPECT_TRUE(cuda[i].cpu().equal(cpu[i])) << c10::toString(format) << " " << n << " " << i;
        }
    }
}

// The device computes the norm and its factor, and decides whether there is an update at all.
TEST_P(CudaKernel, AGateClipsOrSkipsTheUpdate) {
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

TEST_P(CudaKernel, AdamOverRunsMatchesTheCpu) {
  const int64_t n = 64 * 300;
  std::vector<UpdateRun> runs;  // with padding after each of them
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

TEST_P(CudaKernel, ScalingReportsNumbersThatAreNotFinite) {
  for (const int64_t n : {3, 1003, 70000})
    for (const double factor : {1.0, 0.25}) {
      const Tensor flat = random({n}), cuda = flat.to(at::kCUDA);
      EXPECT_TRUE(scale_and_check_(cuda, factor));
      expect_same(cuda, flat * factor, fmt::format("{} elements times {}", n, factor));
      cuda[n / 2] = std::numeric_limits<double>::quiet_NaN();
      EXPECT_FALSE(scale_and_check_(cuda, factor));
    }
}

}  // namespace
}  // namespace megalith::ops
