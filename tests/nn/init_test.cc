// Fresh weights: the same full tensor for every layout, and normal numbers at all.
#include "megalith/nn/parameter/init.h"

#include <ATen/Parallel.h>

#include "megalith/nn/tensor_parallel/embedding.h"
#include "megalith/nn/tensor_parallel/linear.h"
#include "tests/nn/nn_support.h"

namespace megalith::nn {
namespace {

constexpr int64_t kIn = 8;

at::Tensor drawn(at::IntArrayRef shape, uint64_t seed, const std::string& name, double mean = 0, double std = 1) {
  at::Tensor out = at::empty(shape, at::kFloat);
  fill_normal(out, seed, name, shape, std::vector<int64_t>(shape.size(), 0), mean, std);
  return out;
}

// A set with every way to split: fused rows, padded rows, columns, vocabulary, replicated.
struct Layers {
  ParameterSet set;
  explicit Layers(const TensorParallel& tp, at::ScalarType dtype = at::kFloat) : set(dtype, at::kCPU) {
    const ParameterScope scope(set);
    ColumnParallelLinear(scope.child("a"), "qkv", kIn, {{"q", 8}, {"k", 4}, {"v", 7, 8}}, true, Init::normal(0.02), tp);
    RowParallelLinear(scope.child("b"), "down", kIn, 6, true, Init::normal(0.1), tp);
    VocabParallelEmbedding(scope.child("c"), {7, 8}, kIn, Init::normal(1), tp);
    scope.child("d").add({.name = "scale", .init = Init::ones(), .replica = tp.rank()}, {kIn});
    // Garbage that initialisation has to replace.
    const at::NoGradGuard no_grad;
    for (const auto& parameter : set.all()) parameter->value.fill_(std::numeric_limits<float>::quiet_NaN());
  }
};

// The full tensors, put together from the ranks' rectangles.
FullTensors gathered(const ParameterSet& set, const TensorParallel& tp) {
  FullTensors full;
  for (const auto& parameter : set.all()) {
    at::Tensor rest = parameter->value.detach().clone();
    for (const auto& part : parameter->sharded()) {
      at::Tensor whole = at::zeros(part.global_shape, at::kFloat);
      if (part.replica == 0) rectangle(whole, part).copy_(part.local);
      tp.group.all_reduce(whole);
      full[part.name] = whole;
    }
    for (const auto& part : parameter->sharded(rest)) part.local.zero_();
    EXPECT_TRUE(rest.eq(0).all().item<bool>()) << "padding of " << parameter->spec.name;
  }
  return full;
}

FullTensors initialized(int tp_size, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  FullTensors full;
  run_tp({tp_size, false}, [&](const TensorParallel& tp) {
    Layers layers(tp, dtype);
    initialize(layers.set, seed);
    const FullTensors all = gathered(layers.set, tp);
    if (tp.rank() == 0) full = all;
  });
  return full;
}

TEST(Init, IsTheSameForEveryLayout) {
  const FullTensors one = initialized(1, 5);
  EXPECT_EQ(one.size(), 10U);
  for (const int tp : {2, 4})
    for (const auto& [name, value] : initialized(tp, 5)) expect_identical(value, one.at(name), name);
  expect_identical(one.at("a.q.weight"), drawn({8, kIn}, 5, "a.q.weight", 0, 0.02), "by its own name");
}

TEST(Init, FollowsTheKind) {
  const FullTensors one = initialized(1, 5);
  for (const char* zero : {"a.q.bias", "a.v.bias", "b.down.bias"})
    EXPECT_TRUE(one.at(zero).eq(0).all().item<bool>()) << zero;
  EXPECT_TRUE(one.at("d.scale").eq(1).all().item<bool>());
}

TEST(Init, OfBf16IsTheFp32NumberRounded) {
  const FullTensors wide = initialized(1, 5), narrow = initialized(2, 5, at::kBFloat16);
  for (const auto& [name, value] : wide)
    expect_identical(narrow.at(name), value.to(at::kBFloat16).to(at::kFloat), name);
}

TEST(Init, DiffersByNameAndSeed) {
  const at::Tensor a = drawn({64, 64}, 1, "a");
  expect_identical(drawn({64, 64}, 1, "a"), a, "again");
  for (const at::Tensor& other : {drawn({64, 64}, 1, "b"), drawn({64, 64}, 2, "a"), drawn({64, 64}, 1, "layers.0.a")}) {
    EXPECT_EQ(a.eq(other).sum().item<int64_t>(), 0);
    // Independent: their correlation is of the order 1/sqrt(4096).
    EXPECT_LT(std::abs((a * other).mean().item<double>()), 0.08);
  }
}

TEST(Init, HasTheMomentsOfANormalDistribution) {
  const at::Tensor x = (drawn({1000, 1000}, 3, "w", 0.5, 2).to(at::kDouble) - 0.5) / 2;
  // Standard errors with 10⁶ numbers: 0.001, 0.0014, 0.0024, 0.0098; five of each are allowed.
  EXPECT_NEAR(x.mean().item<double>(), 0, 0.005);
  EXPECT_NEAR(x.pow(2).mean().item<double>(), 1, 0.007);
  EXPECT_NEAR(x.pow(3).mean().item<double>(), 0, 0.02);
  EXPECT_NEAR(x.pow(4).mean().item<double>(), 3, 0.05);
  EXPECT_GT(x.abs().max().item<double>(), 4);
  // Neighbours, which share a block of random bits, and rows are independent.
  EXPECT_NEAR((x.slice(1, 0, 999) * x.slice(1, 1, 1000)).mean().item<double>(), 0, 0.005);
  EXPECT_NEAR((x.slice(0, 0, 999) * x.slice(0, 1, 1000)).mean().item<double>(), 0, 0.005);
}

// Computed by an independent program from the published algorithm: runs are repeated by seed, also with later versions.
TEST(Init, NumbersDoNotChange) {
  const at::Tensor first = drawn({6}, 1234, "layers.0.mlp.up.weight");
  const at::Tensor expected = at::tensor({-0.14240554822860027, -0.44230237960731283, -0.932949325674213,
                                          -2.0108317283163477, 0.580958527722761, -0.709402548649604});
  EXPECT_TRUE(at::allclose(first, expected.to(at::kFloat), 1e-6, 0)) << first;
  // Far beyond 2³², as in an embedding of many billions of numbers.
  at::Tensor far = at::empty({1, 2});
  fill_normal(far, 1234, "layers.0.mlp.up.weight", {200'000, 100'000}, {100'000, 0}, 0, 1);
  EXPECT_TRUE(at::allclose(far, at::tensor({-1.2739149475442477, -0.8203428243883735}).to(at::kFloat), 1e-6, 0)) << far;
}

TEST(Init, DoesNotDependOnTheNumberOfThreads) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = drawn({513, 7}, 3, "w");
  at::set_num_threads(2);
  expect_identical(drawn({513, 7}, 3, "w"), one, "two threads");
  at::set_num_threads(threads);
}

// Rectangles that start anywhere, also in the middle of a block of random bits.
TEST(Init, RectanglesAreCutFromTheWhole) {
  const at::Tensor whole = drawn({9, 7}, 3, "w");
  for (int64_t row = 0; row < 9; row += 2)
    for (int64_t column = 0; column < 7; ++column) {
      at::Tensor part = at::empty({9 - row, 7 - column});
      fill_normal(part, 3, "w", {9, 7}, {row, column}, 0, 1);
      expect_identical(part, whole.slice(0, row).slice(1, column).contiguous(), "a corner");
    }
}

TEST(Init, LeavesMetaTensorsAlone) {
  ParameterSet set(at::kFloat, at::kMeta);
  ParameterScope(set).add({.name = "w", .init = Init::normal(1)}, {1 << 20, 1 << 20});
  initialize(set, 1);
  EXPECT_EQ(set.numel(), int64_t{1} << 40);
}

}  // namespace
}  // namespace megalith::nn
