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
#include "megalith/ops/update/stored_adam.h"
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

// Formats of main, the moments and the gradient.
struct StateFormatCase {
  at::ScalarType main, first, second, grad;
};

// State of a bf16 model; `device` may be the CPU, which has no kernel for it.
StoredAdamTensors stored_state(const StateFormatCase& c, int64_t n, at::Generator generator, at::Device device) {
  const auto stored = [&](at::ScalarType format, const Tensor& numbers) {
    StoredValues values{.values = at::zeros({n}, at::TensorOptions(device).dtype(format))};
    if (has_scales(format)) values.scales = at::zeros({n / kScaleBlock}, device);
    if (format == at::kShort) values.high = at::zeros({n}, at::TensorOptions(device).dtype(at::kBFloat16));
    write_values(numbers.to(device), values);
    return values;
  };
  const auto random_numbers = [&] { return at::randn({n}, generator, at::kFloat); };
  StoredAdamTensors t{.main = stored(c.main, random_numbers()),
                      .grad = random_numbers().to(device).to(c.grad),
                      .exp_avg = stored(c.first, random_numbers() * 0.1),
                      .exp_avg_sq = stored(c.second, random_numbers().square() * 0.01)};
  if (c.main != at::kShort) t.param = at::zeros({n}, at::TensorOptions(device).dtype(at::kBFloat16));
  return t;
}

std::vector<Tensor> tensors_of(const StoredAdamTensors& t) {
  const auto bits = [](const Tensor& x) { return x.defined() && x.element_size() == 1 ? x.view(at::kByte) : x; };
  return {t.main.values,          t.main.scales,    t.main.high,
          bits(t.exp_avg.values), t.exp_avg.scales, bits(t.exp_avg_sq.values),
          t.exp_avg_sq.scales,    t.param};
}

// Widens, updates and rounds in three passes.
void update_in_three_passes(const StoredAdamTensors& t, std::span<const UpdateRun> runs) {
  const auto widened = [](const StoredValues& stored) {
    const Tensor numbers = at::empty({stored.numel()}, stored.values.options().dtype(at::kFloat));
    read_values(stored, numbers);
    return numbers;
  };
  const Tensor main = widened(t.main), first = widened(t.exp_avg), second = widened(t.exp_avg_sq);
  adam_update_runs({main, t.grad, first, second, {}, t.gate}, {}, runs);
  write_values(main, t.main);
  write_values(first, t.exp_avg);
  write_values(second, t.exp_avg_sq);
  if (t.param.defined()) t.param.copy_(widened(t.main));
}

TEST_P(CudaKernel, AdamOverStoredStateHasTheBitsOfThreePasses) {
  const int64_t n = 70016;
  const UpdateScalars scalars{.lr = 1e-2, .weight_decay = 0.1, .grad_scale = 0.5, .step = 3};
  UpdateScalars other = scalars;
  other.lr = 2e-2;
  const std::vector<UpdateRun> runs{{0, 6400, scalars}, {6400, n, other}};
  for (const StateFormatCase& c : {StateFormatCase{at::kShort, at::kBFloat16, at::kBFloat16, GetParam()},
                                   {at::kShort, at::kFloat8_e4m3fn, at::kHalf, GetParam()},
                                   {at::kHalf, at::kFloat8_e4m3fn, at::kFloat8_e4m3fn, GetParam()},
                                   {at::kFloat, at::kHalf, at::kFloat, GetParam()}}) {
    const auto run = [&](bool one_pass) {
      generator_.set_current_seed(7);
      const StoredAdamTensors t = stored_state(c, n, generator_, at::kCUDA);
      if (one_pass)
        EXPECT_TRUE(adam_update_stored(t, {}, runs));
      else
        update_in_three_passes(t, runs);
      return tensors_of(t);
    };
    const Tensors actual = run(true), expected = run(false);
    for (size_t i = 0; i < expected.size(); ++i)
      if (expected[i].defined()) {
        EXPECT_TRUE(actual[i].equal(expected[i])) << c10::toString(c.main) << " " << c10::toString(c.first) << " " << i;
      }
  }
  const StoredAdamTensors host =
      stored_state({at::kShort, at::kBFloat16, at::kBFloat16, GetParam()}, 128, generator_, at::kCPU);
  EXPECT_FALSE(adam_update_stored(host, {}, std::vector<UpdateRun>{{0, 128, scalars}}));
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

// A block for each multiprocessor walks over all elements: the same bits, however many there are.
TEST_P(CudaKernel, AnUpdateOnFewMultiprocessorsHasTheSameBits) {
  const int64_t n = 64 * 9000 + 64;
  const UpdateScalars scalars{.lr = 1e-2, .weight_decay = 0.1, .grad_scale = 0.5, .step = 3};
  UpdateScalars other = scalars;
  other.lr = 2e-2;
  const std::vector<UpdateRun> runs{{0, 6400, scalars}, {6400, n - 40, other}};
  const Tensor main = at::randn({n}, generator_, at::kFloat), grad = random({n}), m = at::randn_like(main),
               v = at::rand({n}, generator_, at::kFloat);
  for (const Tensor& t : {main, grad, m, v}) t.narrow(0, n - 40, 40).zero_();
  const auto run = [&](int multiprocessors) {
    UpdateTensors t{main.cuda(), grad.cuda(), m.cuda(), v.cuda(), {}};
    if (GetParam() != at::kFloat) t.param = at::zeros_like(t.grad);
    t.multiprocessors = multiprocessors;
    adam_update_runs(t, {}, runs);
    return Tensors{t.main, t.exp_avg, t.exp_avg_sq, t.param};
  };
  const auto run_stored = [&](int multiprocessors) {
    generator_.set_current_seed(7);
    StoredAdamTensors t =
        stored_state({at::kShort, at::kFloat8_e4m3fn, at::kBFloat16, GetParam()}, n, generator_, at::kCUDA);
    t.multiprocessors = multiprocessors;
    EXPECT_TRUE(adam_update_stored(t, {}, std::vector<UpdateRun>{{0, 6400, scalars}, {6400, n, other}}));
    return tensors_of(t);
  };
  const Tensors expected = run(0), expected_stored = run_stored(0);
  for (const int multiprocessors : {1, 16}) {
    const Tensors actual = run(multiprocessors), stored = run_stored(multiprocessors);
    for (size_t i = 0; i < expected.size(); ++i)
      if (expected[i].defined()) {
        EXPECT_TRUE(actual[i].equal(expected[i])) << multiprocessors << " " << i;
      }
    for (size_t i = 0; i < expected_stored.size(); ++i)
      if (expected_stored[i].defined()) {
        EXPECT_TRUE(stored[i].equal(expected_stored[i])) << multiprocessors << ", stored " << i;
      }
  }
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
