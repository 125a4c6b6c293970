// Dropout by its properties: the expected share stays, the state of the generator decides, and neither threads nor the
// fused form change a bit.
#include "megalith/ops/norm_rope/dropout.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <array>
#include <string>

#include "megalith/base/error.h"
#include "megalith/ops/norm_rope/composite_internal.h"
#include "megalith/ops/norm_rope/dropout_internal.h"
#include "tests/ops/compare.h"
#include "tests/support/expect.h"

namespace megalith::ops {
namespace {

using at::Tensor;
using testing::all_dtypes;
using testing::expect_close;
using testing::expect_contains;
using testing::random_tensor;
using testing::ThreadCount;

at::Generator seeded(uint64_t seed) { return at::detail::createCPUGenerator(seed); }

TEST(Dropout, KeepsTheExpectedShareAndScalesIt) {
  for (const double p : {0.1, 0.5, 0.9})
    for (const auto dtype : all_dtypes()) {
      const int64_t n = 100003;
      const Tensor y = dropout(at::ones({n}, dtype), p, seeded(1));
      const Tensor kept = y.ne(0);
      const double share = kept.to(at::kDouble).mean().item<double>();
      EXPECT_NEAR(share, 1 - p, 5 * std::sqrt(p * (1 - p) / static_cast<double>(n)));
      EXPECT_TRUE(y.equal(kept.to(dtype) * at::full({}, 1 / (1 - p), dtype)));
    }
}

// Drops are independent of their neighbours: the share of pairs that both stay, at several distances.
TEST(Dropout, NeighboursAreIndependent) {
  const int64_t n = 1 << 18;
  const Tensor kept = dropout(at::ones({n}), 0.5, seeded(3)).ne(0).to(at::kDouble);
  for (const int64_t distance : {1, 2, 15, 16, 17, 48, 64, 1024}) {
    const Tensor both = kept.narrow(0, 0, n - distance) * kept.narrow(0, distance, n - distance);
    EXPECT_NEAR(both.mean().item<double>(), 0.25, 5 * 0.433 / 512) << distance;
  }
}

// The first words of Philox4x32-10 with counter and key 0, as Random123's known-answer test has them:
// 6627e8d5 e169c58d bc57ac4c 9b00dbd8, which are 0.399, 0.881, 0.736 and 0.605 of 2^32.
TEST(Dropout, DrawsPhilox) {
  const auto mask_at = [](double p) {
    std::array<float, 64> x{}, y{};
    std::array<uint8_t, 64> mask{};
    dropout_forward_cpu(
        {.elements = 64, .p = p, .seed = {.value = 0}, .x = x.data(), .y = y.data(), .mask = mask.data()});
    return std::array{mask[0], mask[16], mask[32], mask[48]};
  };
  EXPECT_EQ(mask_at(0.398), (std::array<uint8_t, 4>{1, 1, 1, 1}));
  EXPECT_EQ(mask_at(0.401), (std::array<uint8_t, 4>{0, 1, 1, 1}));
  EXPECT_EQ(mask_at(0.606), (std::array<uint8_t, 4>{0, 1, 1, 0}));
  EXPECT_EQ(mask_at(0.737), (std::array<uint8_t, 4>{0, 1, 0, 0}));
  EXPECT_EQ(mask_at(0.882), (std::array<uint8_t, 4>{0, 0, 0, 0}));
}

TEST(Dropout, TheGeneratorsStateDecides) {
  const Tensor x = random_tensor({33, 77}).to(at::kFloat);
  at::Generator generator = seeded(7);
  const Tensor state = generator.get_state();
  const Tensor first = dropout(x, 0.3, generator);
  const Tensor second = dropout(x, 0.3, generator);
  EXPECT_FALSE(first.equal(second));
  generator.set_state(state);
  EXPECT_TRUE(dropout(x, 0.3, generator).equal(first));
}

// As recomputation needs it: no gradients at first, another number of threads.
TEST(Dropout, RepeatsWhateverTheThreadsAndTheMode) {
  const Tensor x = random_tensor({300, 301}).to(at::kFloat).requires_grad_();
  const auto run = [&](int threads, bool record) {
    const ThreadCount count(threads);
    const at::AutoGradMode mode(record);
    return dropout(x, 0.3, seeded(7)).detach();
  };
  const Tensor expected = run(1, true);
  EXPECT_TRUE(run(1, false).equal(expected));
  EXPECT_TRUE(run(3, true).equal(expected));
}

TEST(Dropout, ZeroDrawsNothing) {
  at::Generator generator = seeded(7);
  const Tensor state = generator.get_state();
  const Tensor x = random_tensor({5}), r = random_tensor({5}, 2);
  EXPECT_TRUE(dropout(x, 0, generator).is_same(x));
  EXPECT_TRUE(dropout_add(x, r, 0, generator).equal(r + x));
  EXPECT_TRUE(generator.get_state().equal(state));
  EXPECT_TRUE(dropout(x, 0, at::Generator()).is_same(x));
}

TEST(Dropout, GradientPassesWhereTheInputDid) {
  for (const auto dtype : all_dtypes()) {
    const Tensor x = at::ones({9, 31}, dtype).requires_grad_(), r = at::zeros({9, 31}, dtype).requires_grad_();
    const Tensor weight = random_tensor({9, 31}).to(dtype);
    const Tensor y = dropout(x, 0.4, seeded(5));
    (y * weight).sum().backward();
    expect_close(x.grad(), y.detach() * weight, testing::tolerance_of(dtype));
    x.mutable_grad().reset();
    const Tensor sum = dropout_add(x, r, 0.4, seeded(5));
    EXPECT_TRUE(sum.equal(y));
    (sum * weight).sum().backward();
    expect_close(x.grad(), y.detach() * weight, testing::tolerance_of(dtype));
    EXPECT_TRUE(r.grad().equal(weight));
  }
}

TEST(Dropout, FusedAdditionIsDropoutThenAddition) {
  for (const auto dtype : all_dtypes()) {
    const Tensor x = random_tensor({9, 31}).to(dtype), r = random_tensor({9, 31}, 2).to(dtype);
    EXPECT_TRUE(dropout_add(x, r, 0.4, seeded(5)).equal(r + dropout(x, 0.4, seeded(5)))) << dtype;
  }
  const Tensor x = random_tensor({9}).to(at::kBFloat16), r = random_tensor({9}, 2).to(at::kFloat);
  EXPECT_TRUE(dropout_add(x, r, 0.4, seeded(5)).equal(r + dropout(x, 0.4, seeded(5))));
}

// The composite form runs on devices without a kernel.
TEST(Dropout, CompositeKeepsTheExpectedShareAndScalesIt) {
  const Tensor x = at::ones({100000}).requires_grad_();
  const Tensor y = dropout_composite(x, 0.25, seeded(1));
  const Tensor kept = y.detach().ne(0).to(at::kFloat);
  EXPECT_NEAR(kept.mean().item<float>(), 0.75, 0.007);
  EXPECT_TRUE(y.equal(kept * (1 / 0.75)));
  y.sum().backward();
  EXPECT_TRUE(x.grad().equal(y));
}

TEST(Dropout, StridesEmptinessAndBadNumbers) {
  const Tensor x = random_tensor({4, 6}).to(at::kFloat);
  EXPECT_TRUE(dropout(x.t(), 0.5, seeded(1)).equal(dropout(x.t().contiguous(), 0.5, seeded(1))));
  EXPECT_EQ(dropout(at::empty({0, 3}), 0.5, seeded(1)).numel(), 0);
  // A dropped infinity is 0, not NaN.
  const Tensor y = dropout(at::full({64}, INFINITY), 0.5, seeded(1));
  EXPECT_FALSE(y.isnan().any().item<bool>());
}

TEST(Dropout, BadArgumentsAreNamed) {
  const auto message = [](const auto& f) -> std::string {
    try {
      f();
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  };
  const Tensor x = at::ones({4});
  expect_contains(message([&] { dropout(x, 1.0, seeded(1)); }), "dropout is 1");
  expect_contains(message([&] { dropout(x, -0.5, seeded(1)); }), "dropout is -0.5");
  expect_contains(message([&] { dropout(x, NAN, seeded(1)); }), "dropout is nan");
  EXPECT_THROW(dropout(x, 2, seeded(1)), ConfigError);
  expect_contains(message([&] { dropout(x, 0.5, at::Generator()); }), "generator");
  expect_contains(message([&] { dropout_add(x, at::ones({3}), 0.5, seeded(1)); }), "[3]");
}

}  // namespace
}  // namespace megalith::ops
