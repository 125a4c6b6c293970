// Optimizer updates and passes over flat buffers against their definitions in fp64.
#include "megalith/ops/update/adam.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/ops/update/flat_buffer.h"
#include "tests/ops/compare.h"
#include "tests/support/expect.h"

namespace megalith::ops {
namespace {

using at::Tensor;
using testing::expect_close;
using testing::random_tensor;
using testing::ThreadCount;

constexpr int64_t kCount = 70'003;  // several threads, and no multiple of a vector

struct AdamCase {
  at::ScalarType grad, param;
  bool decoupled;
};

class AdamUpdate : public ::testing::TestWithParam<AdamCase> {};

TEST_P(AdamUpdate, FollowsItsDefinition) {
  const AdamCase& c = GetParam();
  const ThreadCount threads(2);
  const AdamSettings settings{.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-6, .decoupled_decay = c.decoupled};
  Tensor main = random_tensor({kCount}).to(at::kFloat), m = at::zeros({kCount}), v = at::zeros({kCount});
  Tensor param = c.param == at::kFloat ? Tensor() : main.to(c.param);
  Tensor p = main.to(at::kDouble), em = at::zeros({kCount}, at::kDouble), ev = em.clone();
  for (int64_t step = 1; step <= 3; ++step) {
    const Tensor grad = (random_tensor({kCount}) + static_cast<double>(step)).to(c.grad);
    const UpdateScalars scalars{.lr = 0.01, .weight_decay = 0.1, .grad_scale = 0.25, .step = step};
    adam_update({main, grad, m, v, param}, settings, scalars);
    Tensor g = grad.to(at::kDouble) * 0.25;
    if (!c.decoupled) g = g + 0.1 * p;
    em = 0.8 * em + 0.2 * g;
    ev = 0.95 * ev + 0.05 * g * g;
    const Tensor corrected = em / (1 - std::pow(0.8, step)), root = (ev / (1 - std::pow(0.95, step))).sqrt();
    p = p - 0.01 * (corrected / (root + 1e-6) + (c.decoupled ? 0.1 * p : at::zeros_like(p)));
  }
  expect_close(main, p, 1e-6);
  expect_close(m, em, 1e-6);
  expect_close(v, ev, 1e-6);
  if (param.defined()) {
    EXPECT_TRUE(param.equal(main.to(c.param)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, AdamUpdate,
    ::testing::Values(AdamCase{at::kFloat, at::kFloat, true}, AdamCase{at::kFloat, at::kFloat, false},
                      AdamCase{at::kFloat, at::kBFloat16, true}, AdamCase{at::kFloat, at::kHalf, true},
                      AdamCase{at::kBFloat16, at::kBFloat16, true}, AdamCase{at::kHalf, at::kHalf, false}));

TEST(SgdUpdate, FollowsItsDefinition) {
  Tensor main = random_tensor({kCount}).to(at::kFloat), momentum = at::zeros({kCount}), param = main.to(at::kBFloat16);
  Tensor p = main.to(at::kDouble), b = at::zeros({kCount}, at::kDouble);
  for (int64_t step = 1; step <= 3; ++step) {
    const Tensor grad = random_tensor({kCount}).to(at::kFloat);
    sgd_update({main, grad, momentum, {}, param}, {.momentum = 0.9},
               {.lr = 0.1, .weight_decay = 0.01, .grad_scale = 0.5, .step = step});
    b = 0.9 * b + 0.5 * grad.to(at::kDouble) + 0.01 * p;
    p = p - 0.1 * b;
  }
  expect_close(main, p, 1e-6);
  EXPECT_TRUE(param.equal(main.to(at::kBFloat16)));
}

TEST(ClipFactor, KeepsTheNormBelowItsLimit) {
  EXPECT_DOUBLE_EQ(clip_factor(3, {.unscale = 1, .clip = 0}), 1);
  EXPECT_DOUBLE_EQ(clip_factor(0.5, {.unscale = 1, .clip = 1}), 1);
  EXPECT_NEAR(clip_factor(4, {.unscale = 1, .clip = 1}), 0.25, 1e-6);
  EXPECT_NEAR(clip_factor(4, {.unscale = 0.5, .clip = 1}), 0.25, 1e-6);  // half of it by the scale, half by the limit
  EXPECT_DOUBLE_EQ(clip_factor(1.5, {.unscale = 0.5, .clip = 1}), 0.5);
}

// The factor of the host comes with the gate, bit for bit; a closed one leaves everything as it is.
TEST(UpdateGate, IsTheHostsFactorOrNoUpdate) {
  const Tensor start = random_tensor({kCount}).to(at::kFloat), grad = random_tensor({kCount}).to(at::kFloat);
  const auto run = [&](bool adam, const Tensor& gate, double factor) {
    Tensor main = start.clone(), m = at::zeros({kCount}), v = at::zeros({kCount}), param = start.to(at::kBFloat16);
    const UpdateScalars scalars{.lr = 0.1, .weight_decay = 0.01, .grad_scale = factor};
    if (adam)
      adam_update({main, grad, m, v, param, gate}, {}, scalars);
    else
      sgd_update({main, grad, m, {}, param, gate}, {}, scalars);
    return std::vector<Tensor>{main, m, v, param};
  };
  const ClipSettings clip{.unscale = 0.5, .clip = 1};
  const Tensor sum = sum_of_squares(grad);
  for (const bool adam : {true, false}) {
    const auto expected = run(adam, {}, clip_factor(std::sqrt(sum.item<double>()), clip));
    const auto gated = run(adam, clip_gate(std::vector{sum}, clip), NAN);
    const auto closed = run(adam, clip_gate(std::vector{sum, at::scalar_tensor(NAN, at::kDouble)}, clip), NAN);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(gated[i].equal(expected[i])) << adam << ' ' << i;
    EXPECT_TRUE(closed[0].equal(start));
    EXPECT_TRUE(closed[1].eq(0).all().item<bool>());
    EXPECT_TRUE(closed[3].equal(start.to(at::kBFloat16)));
  }
}

TEST(AdamUpdate, ZerosStayZeros) {  // padding between parameters
  Tensor main = at::zeros({64}), m = at::zeros({64}), v = at::zeros({64});
  adam_update({main, at::zeros({64}), m, v, {}}, {}, {.lr = 0.1, .weight_decay = 0.1});
  EXPECT_TRUE(main.eq(0).all().item<bool>());
}

TEST(AdamUpdate, NamesWhatDoesNotFit) {
  const Tensor main = at::zeros({64});
  try {
    adam_update({main, at::zeros({63}), at::zeros({64}), at::zeros({64}), {}}, {}, {});
    FAIL();
  } catch (const InternalError& error) {
    testing::expect_contains(error.what(), "gradient");
  }
}

TEST(FlatPasses, SquaresAreThoseOfTheElements) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensor x = random_tensor({kCount}).to(dtype);
    ExactSum sum;
    add_squares(x, sum);
    EXPECT_NEAR(sum.value(), x.to(at::kDouble).square().sum().item<double>(), 1e-9 * sum.value());
  }
}

// Therefore sharded and unsharded optimizers clip by the same number.
TEST(FlatPasses, SquaresDoNotDependOnCutsAndThreads) {
  const Tensor x = random_tensor({kCount}).to(at::kFloat);
  ExactSum whole;
  add_squares(x, whole);
  for (const int threads : {1, 2, 3})
    for (const int64_t cut : {int64_t{64}, int64_t{6400}, int64_t{64'000}}) {
      const ThreadCount count(threads);
      ExactSum parts;
      add_squares(x.narrow(0, cut, kCount - cut), parts);
      add_squares(x.narrow(0, 0, cut), parts);
      EXPECT_EQ(parts.value(), whole.value()) << threads << " threads, cut at " << cut;
    }
}

TEST(FlatPasses, InfinitiesAndNansAreSeen) {
  for (const double odd : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
    Tensor x = at::ones({kCount});
    EXPECT_TRUE(scale_and_check_(x, 1));
    x[kCount - 1] = odd;
    ExactSum sum;
    add_squares(x, sum);
    EXPECT_TRUE(sum.non_finite());
    EXPECT_FALSE(scale_and_check_(x, 1));
    EXPECT_FALSE(scale_and_check_(x, 0.5));
    EXPECT_EQ(x[0].item<double>(), 0.5);
  }
}

TEST(FlatPasses, ZerosAreCounted) {
  Tensor x = at::ones({kCount});
  x.narrow(0, 10, 5).zero_();
  x[40] = -0.0;
  EXPECT_EQ(count_zeros(x), 6);
  EXPECT_EQ(count_zeros(at::zeros({0})), 0);
}

}  // namespace
}  // namespace megalith::ops
