// Activations against their definition in fp64, outputs and gradients, in every dtype; their edges, errors and memory.
#include "megalith/ops/norm_rope/activation.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

#include "megalith/base/error.h"
#include "megalith/ops/norm_rope/composite_internal.h"
#include "tests/ops/compare.h"
#include "tests/support/expect.h"
#include "tests/support/memory_meter.h"

namespace megalith::ops {
namespace {

using at::Tensor;
using testing::all_dtypes;
using testing::expect_close;
using testing::expect_contains;
using testing::expect_matches;
using testing::random_tensor;
using testing::TensorList;
using testing::ThreadCount;
using testing::tolerance_of;

Tensor definition(const Tensor& x, Activation activation) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1 + at::exp(-x));
    case Activation::kGelu:
      return x * 0.5 * (1 + at::erf(x / std::sqrt(2.0)));
    case Activation::kGeluTanh:
      return x * 0.5 * (1 + at::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x.pow(3))));
    case Activation::kQuickGelu:
      return x / (1 + at::exp(-1.702 * x));
    case Activation::kRelu:
      return at::relu(x);
    case Activation::kSquaredRelu:
      break;
  }
  return at::relu(x).square();
}

class Activations : public ::testing::TestWithParam<Activation> {};

TEST_P(Activations, GatedMatchesItsDefinition) {
  const Activation a = GetParam();
  for (const auto dtype : all_dtypes())
    for (const int64_t f : {1, 7, 64, 1000}) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + " f " + std::to_string(f));
      const auto def = [&](const TensorList& in) {
        return TensorList{definition(in[0].narrow(1, 0, f), a) * in[0].narrow(1, f, f)};
      };
      expect_matches([&](const TensorList& in) { return TensorList{gated_activation(in[0], a)}; }, def,
                     {random_tensor({5, 2 * f}) * 2}, dtype, tolerance_of(dtype));
    }
}

TEST_P(Activations, BiasedMatchesItsDefinition) {
  const Activation a = GetParam();
  for (const auto dtype : all_dtypes())
    for (const int64_t f : {1, 7, 1000}) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + " f " + std::to_string(f));
      expect_matches([&](const TensorList& in) { return TensorList{bias_activation(in[0], in[1], a)}; },
                     [&](const TensorList& in) { return TensorList{definition(in[0] + in[1], a)}; },
                     {random_tensor({67, f}) * 2, random_tensor({f}, 2)}, dtype, tolerance_of(dtype));
      expect_matches([&](const TensorList& in) { return TensorList{bias_activation(in[0], {}, a)}; },
                     [&](const TensorList& in) { return TensorList{definition(in[0], a)}; },
                     {random_tensor({67, f}) * 2}, dtype, tolerance_of(dtype));
    }
}

// The composite form runs on devices without a kernel.
TEST_P(Activations, CompositeMatchesItsDefinition) {
  const Activation a = GetParam();
  expect_matches(
      [&](const TensorList& in) { return TensorList{gated_composite(in[0], a)}; },
      [&](const TensorList& in) { return TensorList{definition(in[0].narrow(1, 0, 7), a) * in[0].narrow(1, 7, 7)}; },
      {random_tensor({5, 14}) * 2}, at::kFloat, 1e-5);
}

// Far out the value is 0 or x and the slope 0 or 1, never NaN; NaN stays.
TEST_P(Activations, LargeInputs) {
  const Activation a = GetParam();
  if (a == Activation::kSquaredRelu) return;
  const Tensor x = at::tensor({-1e4F, -200.0F, 200.0F, 1e4F}).requires_grad_();
  const Tensor y = bias_activation(x, {}, a);
  y.sum().backward();
  expect_close(y, at::relu(x.detach()), 1e-6);
  EXPECT_TRUE(x.grad().equal(at::tensor({0.0F, 0.0F, 1.0F, 1.0F}))) << x.grad();
  EXPECT_TRUE(std::isnan(bias_activation(at::full({1}, NAN), {}, a).item<float>()));
}

INSTANTIATE_TEST_SUITE_P(All, Activations,
                         ::testing::Values(Activation::kSilu, Activation::kGelu, Activation::kGeluTanh,
                                           Activation::kQuickGelu, Activation::kRelu, Activation::kSquaredRelu));

TEST(ActivationEdges, NoRows) {
  const Tensor x = at::empty({0, 8}).requires_grad_(), b = at::zeros({8}).requires_grad_();
  gated_activation(x, Activation::kSilu).sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  bias_activation(x, b, Activation::kGelu).sum().backward();
  EXPECT_TRUE(b.grad().equal(at::zeros({8})));
}

TEST(ActivationEdges, AnyShapeAndStride) {
  const auto ours = [](const TensorList& in) {
    return TensorList{gated_activation(in[0].transpose(0, 2), Activation::kSilu)};
  };
  const auto def = [](const TensorList& in) {
    const TensorList halves = in[0].transpose(0, 2).chunk(2, -1);
    return TensorList{at::silu(halves[0]) * halves[1]};
  };
  expect_matches(ours, def, {random_tensor({6, 3, 4})}, at::kFloat, 1e-5);
}

TEST(ActivationEdges, OnlyTheBiasNeedsAGradient) {
  const Tensor x = random_tensor({3, 4}).to(at::kFloat), b = at::zeros({4}).requires_grad_();
  bias_activation(x, b, Activation::kRelu).sum().backward();
  expect_close(b.grad(), x.gt(0).to(at::kFloat).sum(0), 1e-6);
}

TEST(ActivationEdges, NothingIsRecordedWithoutGradients) {
  const Tensor x = random_tensor({3, 4}).to(at::kFloat).requires_grad_();
  const Tensor recorded = gated_activation(x, Activation::kSilu);
  const at::NoGradGuard no_grad;
  const Tensor y = gated_activation(x, Activation::kSilu);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_TRUE(y.equal(recorded));
}

// Backward writes over the gradient that arrives when nobody else holds it: the widest tensor of an MLP is not there
// twice.
TEST(ActivationMemory, GradientsAreWrittenOverTheIncomingOnes) {
  const Tensor x = random_tensor({64, 32}).to(at::kFloat).requires_grad_();
  const int64_t bytes = static_cast<int64_t>(x.nbytes());
  const Tensor y = bias_activation(x, {}, Activation::kGelu);
  const Tensor loss = (y * 2).sum();
  const testing::MemoryMeter meter;
  loss.backward();
  EXPECT_LT(meter.peak(), 2 * bytes);
}

TEST(ActivationMemory, AGradientThatTheCallerHoldsStaysAsItIs) {
  const Tensor x = random_tensor({64, 32}).to(at::kFloat).requires_grad_(), given = at::ones({64, 32});
  const Tensor whole = at::ones({128, 32});
  bias_activation(x, {}, Activation::kGelu).backward(given);
  EXPECT_TRUE(given.equal(at::ones({64, 32})));
  bias_activation(x, {}, Activation::kGelu).backward(whole.narrow(0, 0, 64));
  EXPECT_TRUE(whole.equal(at::ones({128, 32})));
}

TEST(ActivationThreads, BiasGradientDoesNotDependOnTiming) {
  const auto run = [](int threads) {
    const ThreadCount count(threads);
    const Tensor x = random_tensor({4000, 48}).to(at::kFloat), b = at::zeros({48}).requires_grad_();
    bias_activation(x, b, Activation::kGelu).square().sum().backward();
    return b.grad();
  };
  const Tensor one = run(1), three = run(3);
  expect_close(three, one, 1e-6);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(run(3).equal(three));
}

TEST(ActivationErrors, NameWhatDoesNotFit) {
  const auto message = [](const auto& f) -> std::string {
    try {
      f();
    } catch (const InternalError& e) {
      return e.what();
    }
    return "no error";
  };
  expect_contains(message([] { gated_activation(at::ones({2, 7}), Activation::kSilu); }), "[2, 7]");
  expect_contains(message([] { bias_activation(at::ones({2, 7}), at::ones({6}), Activation::kSilu); }), "bias of [6]");
  expect_contains(message([] { bias_activation(at::ones({2}, at::kInt), {}, Activation::kSilu); }), "Int");
}

TEST(Activation, RowsAreMultipliedByTheirWeights) {
  const at::Tensor x = testing::random_tensor({5, 8}).to(at::kFloat), w = testing::random_tensor({5}, 2).to(at::kFloat);
  const auto run = [&](bool fused) {
    const at::Tensor in = x.clone().requires_grad_(), weights = w.clone().requires_grad_();
    const at::Tensor y = fused ? gated_activation(in, Activation::kSilu, weights)
                               : gated_activation(in, Activation::kSilu) * weights.unsqueeze(1);
    y.backward(testing::random_tensor({5, 4}, 3).to(at::kFloat));
    return std::vector<at::Tensor>{y.detach(), in.grad(), weights.grad()};
  };
  const auto fused = run(true), plain = run(false);
  for (size_t i = 0; i < fused.size(); ++i) testing::expect_close(fused[i], plain[i], 1e-6);
  testing::expect_error<InternalError>([&] { gated_activation(x, Activation::kSilu, w.narrow(0, 0, 4)); }, {"[4]"});
}

}  // namespace
}  // namespace megalith::ops
