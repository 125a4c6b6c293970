// RMSNorm and LayerNorm, plain, forked and after an addition, against their definition in fp64: outputs and all
// gradients, in every dtype.
#include "megalith/ops/norm_rope/norm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>

#include "megalith/base/error.h"
#include "megalith/ops/norm_rope/composite_internal.h"
#include "tests/ops/compare.h"
#include "tests/support/expect.h"

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

struct NormCase {
  std::string name;
  NormKind kind;
  bool bias;
  bool zero_centered;
};

// Inputs: x, weight[, bias][, delta]
NormWeights weights_of(const NormCase& c, const TensorList& in) {
  return {c.kind, in[1], c.bias ? in[2] : Tensor(), 1e-5, c.zero_centered};
}

Tensor definition(const NormCase& c, const Tensor& x, const TensorList& in) {
  Tensor centered = c.kind == NormKind::kLayer ? x - x.mean(-1, true) : x;
  Tensor y = centered / (centered.square().mean(-1, true) + 1e-5).sqrt() * (c.zero_centered ? in[1] + 1 : in[1]);
  return c.bias ? y + in[2] : y;
}

TensorList inputs_of(const NormCase& c, int64_t t, int64_t h) {
  TensorList in{random_tensor({t, h}, 1) * 2 + 0.5, random_tensor({h}, 2)};
  if (c.bias) in.push_back(random_tensor({h}, 3));
  return in;
}

class Norm : public ::testing::TestWithParam<NormCase> {};

// Blocks of 64 rows and their rest; widths below, at and above those of a vector.
TEST_P(Norm, MatchesItsDefinition) {
  const NormCase& c = GetParam();
  const auto ours = [&](const TensorList& in) { return TensorList{norm(in[0], weights_of(c, in))}; };
  const auto def = [&](const TensorList& in) { return TensorList{definition(c, in[0], in)}; };
  for (const auto dtype : all_dtypes())
    for (const int64_t h : {7, 256, 1000}) {
      SCOPED_TRACE(std::string(c10::toString(dtype)) + " h " + std::to_string(h));
      expect_matches(ours, def, inputs_of(c, 67, h), dtype, tolerance_of(dtype));
    }
}

// The composite form runs on devices without a kernel.
TEST_P(Norm, CompositeMatchesItsDefinition) {
  const NormCase& c = GetParam();
  const auto composite = [&](const TensorList& in) { return TensorList{norm_composite(in[0], weights_of(c, in))}; };
  const auto def = [&](const TensorList& in) { return TensorList{definition(c, in[0], in)}; };
  for (const auto dtype : {at::kFloat, at::kBFloat16})
    expect_matches(composite, def, inputs_of(c, 5, 33), dtype, tolerance_of(dtype));
}

TEST_P(Norm, ForkAddsBothGradients) {
  const NormCase& c = GetParam();
  const auto ours = [&](const TensorList& in) {
    auto [x, y] = norm_fork(in[0], weights_of(c, in));
    return TensorList{x, y};
  };
  const auto def = [&](const TensorList& in) { return TensorList{in[0], definition(c, in[0], in)}; };
  for (const auto dtype : all_dtypes())
    for (const auto& used : std::vector<std::vector<bool>>{{true, true}, {false, true}})
      expect_matches(ours, def, inputs_of(c, 5, 33), dtype, tolerance_of(dtype), used);
}

TEST_P(Norm, AddNormMatchesItsDefinition) {
  const NormCase& c = GetParam();
  const auto ours = [&](const TensorList& in) {
    auto [r, y] = add_norm(in[0], in.back(), weights_of(c, in));
    return TensorList{r, y};
  };
  // x + delta is rounded before it is normalised.
  const auto def = [&](at::ScalarType dtype) {
    return [&c, dtype](const TensorList& in) {
      const Tensor r = in[0] + in.back();
      const Tensor rounded = r + (r.detach().to(dtype).to(at::kDouble) - r.detach());
      return TensorList{rounded, definition(c, rounded, in)};
    };
  };
  for (const auto dtype : all_dtypes())
    for (const auto& used : std::vector<std::vector<bool>>{{true, true}, {false, true}}) {
      TensorList in = inputs_of(c, 5, 33);
      in.push_back(random_tensor({5, 33}, 4));
      expect_matches(ours, def(dtype), in, dtype, tolerance_of(dtype), used);
    }
}

INSTANTIATE_TEST_SUITE_P(All, Norm,
                         ::testing::Values(NormCase{"Rms", NormKind::kRms, false, false},
                                           NormCase{"RmsZeroCentered", NormKind::kRms, false, true},
                                           NormCase{"Layer", NormKind::kLayer, true, false},
                                           NormCase{"LayerNoBias", NormKind::kLayer, false, false},
                                           NormCase{"LayerZeroCentered", NormKind::kLayer, true, true}),
                         [](const auto& each) { return each.param.name; });

const NormCase kRms{"Rms", NormKind::kRms, false, false};

TEST(NormEdges, OneColumn) {
  // LayerNorm of a single value is the bias; RMSNorm its sign.
  const Tensor x = at::tensor({3.0F, -2.0F}).view({2, 1});
  expect_close(norm(x, {NormKind::kRms, at::ones({1}), {}, 0.0}), at::tensor({1.0F, -1.0F}).view({2, 1}), 1e-6);
  expect_close(norm(x, {NormKind::kLayer, at::ones({1}), at::full({1}, 0.5F)}), at::full({2, 1}, 0.5F), 1e-6);
}

TEST(NormEdges, NoRows) {
  const Tensor x = at::empty({0, 8}).requires_grad_();
  const Tensor w = at::ones({8}).requires_grad_();
  const Tensor y = norm(x, {NormKind::kRms, w});
  EXPECT_EQ(y.sizes(), x.sizes());
  y.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_TRUE(w.grad().equal(at::zeros({8})));
}

TEST(NormEdges, AnyShapeAndStride) {
  const auto ours = [](const TensorList& in) { return TensorList{norm(in[0].transpose(0, 1), weights_of(kRms, in))}; };
  const auto def = [](const TensorList& in) { return TensorList{definition(kRms, in[0].transpose(0, 1), in)}; };
  expect_matches(ours, def, {random_tensor({3, 5, 9}), random_tensor({9}, 2)}, at::kFloat, 1e-5);
  // Columns that are not neighbours in memory, and a gradient that is one number everywhere.
  const Tensor x = random_tensor({9, 4}).to(at::kFloat).t().requires_grad_();
  norm(x, {NormKind::kLayer, at::ones({9})}).sum().backward();
  EXPECT_LE(x.grad().abs().max().item<float>(), 1e-6F);
}

TEST(NormEdges, BfloatRmsRoundsBeforeTheWeight) {
  const Tensor x = random_tensor({64, 64}).to(at::kBFloat16), w = random_tensor({64}, 2).to(at::kBFloat16);
  const Tensor wide = x.to(at::kFloat);
  const Tensor normal = wide * at::rsqrt(wide.square().mean(-1, true) + 1e-5);
  const Tensor rounded = w * normal.to(at::kBFloat16);  // HF's LlamaRMSNorm
  const Tensor once = (w.to(at::kFloat) * normal).to(at::kBFloat16);
  const Tensor y = norm(x, {NormKind::kRms, w});
  const auto differing = [&](const Tensor& other) { return y.ne(other).sum().item<int64_t>(); };
  EXPECT_LE(differing(rounded), 4);
  EXPECT_GE(differing(once), 100);
}

TEST(NormEdges, WeightKeepsItsOwnDtype) {
  const Tensor w = at::ones({16}).requires_grad_();
  const Tensor x = random_tensor({4, 16}).to(at::kBFloat16);
  const Tensor y = norm(x, {NormKind::kRms, w});
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  y.sum().backward();
  EXPECT_EQ(w.grad().scalar_type(), at::kFloat);
}

TEST(NormAutograd, ForkCopiesNothing) {
  const Tensor x = random_tensor({4, 8}).to(at::kFloat).requires_grad_();
  const Tensor h = x * 1;
  auto [fork, y] = norm_fork(h, {NormKind::kRms, at::ones({8})});
  EXPECT_EQ(fork.const_data_ptr(), h.const_data_ptr());
  EXPECT_NE(fork.grad_fn(), h.grad_fn());
  EXPECT_EQ(fork.grad_fn(), y.grad_fn());
}

TEST(NormAutograd, ChangingTheForkInPlaceIsNoticed) {
  const Tensor x = random_tensor({4, 8}).to(at::kFloat).requires_grad_();
  const Tensor h = x * 1;
  auto [fork, y] = norm_fork(h, {NormKind::kRms, at::ones({8})});
  const Tensor bump = at::ones({8});
  EXPECT_THROW(
      {
        fork.add_(bump);
        (fork.sum() + y.sum()).backward();
      },
      c10::Error);
}

TEST(NormAutograd, OnlyTheResidualPath) {
  const Tensor x = random_tensor({4, 8}).to(at::kFloat).requires_grad_();
  const Tensor w = at::ones({8}).requires_grad_();
  norm_fork(x, {NormKind::kRms, w}).first.sum().backward();
  EXPECT_TRUE(x.grad().equal(at::ones({4, 8})));
  EXPECT_FALSE(w.grad().defined());
  const Tensor delta = at::zeros({4, 8}).requires_grad_();
  add_norm(x.detach(), delta, {NormKind::kRms, w}).first.sum().backward();
  EXPECT_TRUE(delta.grad().equal(at::ones({4, 8})));
}

TEST(NormAutograd, OnlyWhatIsAskedForGetsAGradient) {
  const Tensor x = random_tensor({4, 8}).to(at::kFloat);
  const Tensor w = at::ones({8}).requires_grad_(), b = at::zeros({8}).requires_grad_();
  norm(x, {NormKind::kLayer, w.detach(), b}).sum().backward();
  EXPECT_TRUE(b.grad().equal(at::full({8}, 4.0F)));
  // Without a bias the edge after the weight's is delta's.
  const Tensor delta = random_tensor({4, 8}, 2).to(at::kFloat).requires_grad_();
  add_norm(x, delta, {NormKind::kLayer, w}).second.square().sum().backward();
  EXPECT_TRUE(delta.grad().defined());
  EXPECT_TRUE(w.grad().defined());
}

TEST(NormAutograd, NothingIsRecordedWithoutGradients) {
  const Tensor x = random_tensor({4, 8}).to(at::kFloat).requires_grad_();
  const NormWeights weights{NormKind::kRms, at::ones({8}).requires_grad_()};
  const Tensor recorded = norm(x, weights);
  const at::NoGradGuard no_grad;
  const Tensor y = norm(x, weights);
  EXPECT_FALSE(y.requires_grad());
  EXPECT_TRUE(y.equal(recorded));
  EXPECT_FALSE(norm_fork(x, weights).second.requires_grad());
}

TEST(NormAutograd, SumInAWiderDtype) {
  const Tensor x = random_tensor({4, 8}).to(at::kFloat).requires_grad_();
  const Tensor delta = random_tensor({4, 8}, 2).to(at::kBFloat16).requires_grad_();
  auto [r, y] = add_norm(x, delta, {NormKind::kRms, at::ones({8})});
  EXPECT_EQ(r.scalar_type(), at::kFloat);
  expect_close(r, x + delta.to(at::kFloat), 1e-7);
  y.square().sum().backward();
  EXPECT_EQ(delta.grad().scalar_type(), at::kBFloat16);
}

// A residual stream in fp32 whose branches are in 16 bits: the norm reads fp32 and rounds once, at its end; backward
// adds both gradients in fp32 and rounds only delta's.
class WideNorm : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  // Returns {x, weight, bias, delta}, delta in the type of the branch.
  TensorList inputs() const {
    TensorList in{random_tensor({67, 40}, 1) * 2 + 0.5, random_tensor({40}, 2), random_tensor({40}, 3),
                  random_tensor({67, 40}, 4).to(GetParam())};
    for (Tensor& each : in)
      each = (each.scalar_type() == GetParam() ? each : each.to(at::kFloat)).detach().requires_grad_();
    return in;
  }
  NormWeights weights(const TensorList& in, NormKind kind) const {
    return {kind, in[1], kind == NormKind::kLayer ? in[2] : Tensor(), 1e-5, false, {}, {}, GetParam()};
  }
  // Runs backward of y's sum of squares plus r's product with numbers, and returns the gradients of all inputs.
  static TensorList gradients(const TensorList& in, const Tensor& r, const Tensor& y) {
    (y.to(at::kFloat).square().sum() + (r * random_tensor({67, 40}, 5).to(at::kFloat)).sum()).backward();
    TensorList grads;
    for (const Tensor& each : in) grads.push_back(each.grad());
    return grads;
  }
};

TEST_P(WideNorm, RoundsItsOutputAlone) {
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    const TensorList ours = inputs(), theirs = inputs();
    const auto [r, y] = norm_fork(ours[0], weights(ours, kind));
    EXPECT_EQ(r.scalar_type(), at::kFloat);
    EXPECT_EQ(y.scalar_type(), GetParam());
    NormWeights wide = weights(theirs, kind);
    wide.out = std::nullopt;
    const auto [wide_r, wide_y] = norm_fork(theirs[0], wide);
    EXPECT_TRUE(y.equal(wide_y.to(GetParam())));
    EXPECT_TRUE(norm(ours[0].detach(), weights(ours, kind)).equal(y));
    const TensorList grads = gradients(ours, r, y), expected = gradients(theirs, wide_r, wide_y.to(GetParam()));
    for (size_t i = 0; i < 3; ++i)
      if (expected[i].defined()) expect_close(grads[i], expected[i], 1e-6);
    EXPECT_EQ(grads[0].scalar_type(), at::kFloat);
  }
}

TEST_P(WideNorm, AddsInFp32) {
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    const TensorList ours = inputs(), theirs = inputs();
    const auto [r, y] = add_norm(ours[0], ours[3], weights(ours, kind));
    const Tensor sum = theirs[0] + theirs[3];
    const auto [separate_r, separate_y] = norm_fork(sum, weights(theirs, kind));
    EXPECT_TRUE(r.equal(sum));
    EXPECT_TRUE(y.equal(separate_y));
    const TensorList grads = gradients(ours, r, y), expected = gradients(theirs, separate_r, separate_y);
    for (size_t i = 0; i < 4; ++i) {
      ASSERT_EQ(grads[i].defined(), expected[i].defined());
      if (!grads[i].defined()) continue;
      EXPECT_EQ(grads[i].scalar_type(), ours[i].scalar_type());
      EXPECT_TRUE(grads[i].equal(expected[i])) << "input " << i;
    }
  }
}

TEST_P(WideNorm, CompositeRoundsItsOutputAlone) {
  const TensorList in = inputs();
  const Tensor composite = norm_composite(in[0], weights(in, NormKind::kRms));
  EXPECT_EQ(composite.scalar_type(), GetParam());
  expect_close(composite, norm(in[0], weights(in, NormKind::kRms)), testing::tolerance_of(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(Types, WideNorm, ::testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& each) { return std::string(c10::toString(each.param)); });

// The same for one number of threads, whatever their timing; nearly the same for another.
TEST(NormThreads, GradientsDoNotDependOnTiming) {
  const auto run = [](int threads) {
    const ThreadCount count(threads);
    const Tensor x = random_tensor({4096, 64}).to(at::kFloat).requires_grad_();
    const Tensor w = random_tensor({64}, 2).to(at::kFloat).requires_grad_();
    norm(x, {NormKind::kLayer, w}).pow(3).sum().backward();
    return std::pair(x.grad(), w.grad());
  };
  const auto [x1, w1] = run(1);
  const auto [x3, w3] = run(3);
  EXPECT_TRUE(x1.equal(x3));
  expect_close(w3, w1, 1e-6);
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(run(3).second.equal(w3));
}

TEST(NormErrors, NameWhatDoesNotFit) {
  const auto message = [](const auto& f) -> std::string {
    try {
      f();
    } catch (const InternalError& e) {
      return e.what();
    }
    return "no error";
  };
  const Tensor x = at::ones({2, 8});
  expect_contains(message([&] { norm(x, {NormKind::kRms, at::ones({7})}); }), "rows of 8");
  expect_contains(message([&] { norm(x, {NormKind::kRms, Tensor()}); }), "it has 0");
  expect_contains(message([&] { norm(x, {NormKind::kRms, at::ones({8}), at::ones({8})}); }), "RMSNorm has no bias");
  expect_contains(message([&] { norm(x.to(at::kLong), {NormKind::kRms, at::ones({8})}); }), "Long");
  expect_contains(message([&] { add_norm(x, at::ones({2, 4}), {NormKind::kRms, at::ones({8})}); }), "[2, 4]");
}

}  // namespace
}  // namespace megalith::ops
