// Linear layers whose products are in fp8: near the exact ones, and the exact ones where fp8 does not fit.
#include "megalith/nn/tensor_parallel/linear.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

constexpr int64_t kTokens = 64, kHidden = 64, kWidth = 128;

struct Result {
  at::Tensor y, dx;
  FullTensors grads;
};

double error_of(const at::Tensor& actual, const at::Tensor& expected) {
  return ((actual - expected).norm() / expected.norm()).item<double>();
}

// A column layer into a row layer; gradients through both.
Result run(TensorParallel tp, std::optional<ops::Fp8Format> fp8, int64_t tokens, bool main_grads) {
  tp.fp8 = fp8;
  ParameterSet set(at::kFloat, at::kCPU);
  const ColumnParallelLinear up(ParameterScope(set), "up", kHidden, {{"up", kWidth}}, true, Init::zeros(), tp);
  const RowParallelLinear down(ParameterScope(set), "down", kWidth, kHidden, true, Init::zeros(), tp);
  load(set, {{"up.weight", random_tensor({kWidth, kHidden}, 1, 0.1)},
             {"up.bias", random_tensor({kWidth}, 2, 0.1)},
             {"down.weight", random_tensor({kHidden, kWidth}, 3, 0.1)},
             {"down.bias", random_tensor({kHidden}, 4, 0.1)}});
  if (main_grads) attach_main_grads(set);
  const at::Tensor x = leaf(between_blocks(random_tensor({tokens, kHidden}, 5), tp));
  const at::Tensor residual = between_blocks(random_tensor({tokens, kHidden}, 6), tp);
  const at::Tensor y = down.forward(at::silu(up.forward(x)), residual);
  y.backward(between_blocks(random_tensor({tokens, kHidden}, 7), tp).contiguous());
  Result result{y.detach(), x.grad(), {}};
  for (const auto& parameter : set.all()) result.grads[parameter->name] = grad_of(*parameter);
  return result;
}

void expect_near(const Result& actual, const Result& exact, double tolerance) {
  EXPECT_LT(error_of(actual.y, exact.y), tolerance);
  EXPECT_LT(error_of(actual.dx, exact.dx), tolerance);
  for (const auto& [name, grad] : exact.grads) EXPECT_LT(error_of(actual.grads.at(name), grad), tolerance) << name;
  EXPECT_GT(error_of(actual.y, exact.y), 1e-5) << "nothing was rounded";
}

TEST(Fp8Linear, IsNearTheExactProducts) {
  for (const auto format : {ops::Fp8Format::kE4m3, ops::Fp8Format::kHybrid})
    for (const bool main_grads : {false, true})
      run_all_layouts([&](const TensorParallel& tp) {
        expect_near(run(tp, format, kTokens, main_grads), run(tp, std::nullopt, kTokens, main_grads), 0.1);
      });
}

TEST(Fp8Linear, LeavesSizesAloneThatDoNotFit) {
  run_tp({1, false}, [](const TensorParallel& tp) {
    const Result actual = run(tp, ops::Fp8Format::kHybrid, 24, true), exact = run(tp, std::nullopt, 24, true);
    expect_identical(actual.y, exact.y, "output");
    expect_identical(actual.dx, exact.dx, "gradient of the input");
  });
}

}  // namespace
}  // namespace megalith::nn
