// The Newton-Schulz iteration against the singular value decomposition, alone and over ranks.
#include "megalith/ops/update/newton_schulz.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/close.h"
#include "tests/support/run_ranks.h"

namespace megalith::testing {
namespace {

const std::vector<ops::NewtonSchulzStep> kSteps{
    {3.4445, -4.7750, 2.0315}, {2.8769, -3.1427, 1.2046}, {1.875, -1.25, 0.375}};

at::Tensor numbers(std::vector<int64_t> shape, double seed = 1) {
  const int64_t n = c10::multiply_integers(shape);
  return (at::arange(1, n + 1, at::kDouble) * (12.9898 + seed)).sin().mul(43758.5453).frac().to(at::kFloat).view(shape);
}

// U p(S) Vᵀ of each matrix in fp64, where p applies the polynomials of the steps.
at::Tensor by_decomposition(const at::Tensor& matrices) {
  const at::Tensor wide = matrices.to(at::kDouble);
  const auto [u, s, v] = at::linalg_svd(wide / wide.square().sum({1, 2}, true).sqrt(), /*full_matrices=*/false);
  at::Tensor p = s;
  for (const auto& step : kSteps) p = p * step.a + p.pow(3) * step.b + p.pow(5) * step.c;
  return u.matmul(p.unsqueeze(2) * v);
}

TEST(NewtonSchulz, MovesSingularValuesAndKeepsTheirVectors) {
  const ops::NewtonSchulz fp32{.steps = kSteps, .dtype = at::kFloat};
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{1, 12, 40}, {1, 40, 12}, {1, 16, 16}, {5, 24, 9}, {3, 1, 32}, {2, 8, 1}}) {
    const at::Tensor matrices = numbers(shape);
    const at::Tensor result = ops::orthogonalize(matrices, fp32);
    EXPECT_EQ(result.scalar_type(), at::kFloat);
    EXPECT_TRUE(result.is_contiguous());
    expect_close(result, by_decomposition(matrices), fmt::format("[{}]", fmt::join(shape, ", ")));
  }
}

TEST(NewtonSchulz, InBf16IsCloseToFp32) {
  const at::Tensor matrices = numbers({2, 32, 64});
  expect_close(ops::orthogonalize(matrices, {.steps = kSteps}), by_decomposition(matrices), "bf16", 0.06);
}

// A matrix without a gradient, as that of an expert that got no token.
TEST(NewtonSchulz, ZerosStayZeros) {
  at::Tensor matrices = numbers({3, 8, 4});
  matrices[1].zero_();
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor result = ops::orthogonalize(matrices, {.steps = kSteps, .dtype = dtype});
    EXPECT_TRUE(result[1].eq(0).all().item<bool>());
    EXPECT_FALSE(result.isnan().any().item<bool>());
  }
}

// Whichever dimension is cut, the shorter or the longer one.
TEST(NewtonSchulz, BlocksOfRanksAreTheWholeMatrix) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 12, 30}, {4, 30, 12}})
    for (const int64_t dim : {0, 1})
      for (const int ranks : {2, 3}) {
        const at::Tensor whole = numbers(shape);
        const at::Tensor expected = by_decomposition(whole);
        const int64_t size = shape[static_cast<size_t>(dim + 1)] / ranks;
        run_ranks(ranks, [&](const Rank& rank) {
          const at::Tensor block = whole.narrow(dim + 1, rank.rank * size, size).contiguous();
          const at::Tensor result =
              ops::orthogonalize_blocks(block, dim, {.steps = kSteps, .dtype = at::kFloat}, rank.world.world());
          expect_close(result, expected.narrow(dim + 1, rank.rank * size, size),
                       fmt::format("[{}] cut along {} over {}", fmt::join(shape, ", "), dim, ranks));
        });
      }
}

}  // namespace
}  // namespace megalith::testing
