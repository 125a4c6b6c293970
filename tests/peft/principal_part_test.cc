#include "megalith/peft/principal_part.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/close.h"

namespace megalith::testing {
namespace {

// [o, i] with the singular values 1, 1/2, 1/4, …
at::Tensor matrix(int64_t outputs, int64_t inputs) {
  const auto generator = at::detail::createCPUGenerator(3);
  const auto basis = [&](int64_t rows, int64_t columns) {
    return std::get<0>(at::linalg_qr(at::randn({rows, columns}, generator, at::kDouble)));
  };
  const int64_t least = std::min(outputs, inputs);
  const at::Tensor values = at::pow(0.5, at::arange(least, at::kDouble));
  return basis(outputs, least).mul(values).mm(basis(inputs, least).t()).to(at::kFloat);
}

// The best approximation of rank r keeps the r largest singular values, so its error has the norm of the others.
TEST(PrincipalPart, IsTheBestApproximation) {
  constexpr int64_t kRank = 3;
  for (const auto& [outputs, inputs] : {std::pair<int64_t, int64_t>{12, 20}, {20, 12}, {9, 9}}) {
    const at::Tensor weight = matrix(outputs, inputs);
    const int64_t least = std::min(outputs, inputs);
    const at::Tensor random =
        at::randn({least, kRank}, at::detail::createCPUGenerator(5), at::TensorOptions(at::kFloat));
    at::Tensor first;
    for (const int iterations : {-1, 16})
      for (const double scale : {1.0, 2.5}) {
        const auto [a, b] = peft::principal_part(weight, kRank, scale, iterations, random);
        EXPECT_EQ(a.sizes(), (std::vector<int64_t>{kRank, inputs}));
        EXPECT_EQ(b.sizes(), (std::vector<int64_t>{outputs, kRank}));
        const at::Tensor part = b.mm(a).mul(scale);
        if (!first.defined()) first = part;
        expect_close(part, first, "the part", 1e-5);
        const double rest = (weight - part).norm().item<double>();
        expect_close(rest, at::pow(0.25, at::arange(kRank, least, at::kDouble)).sum().sqrt().item<double>(),
                     "norm of the rest", 1e-4);
        // Both factors have the same share of the singular values.
        expect_close(a.mm(a.t()), b.t().mm(b), "squares of the factors", 1e-5);
      }
  }
}

// Without iterations a flat spectrum is not separated; with them it is.
TEST(PrincipalPart, IterationsCount) {
  const at::Tensor weight = matrix(30, 40).add(at::eye(30, 40), 0.2);
  const at::Tensor random = at::randn({30, 2}, at::detail::createCPUGenerator(6), at::TensorOptions(at::kFloat));
  const auto rest = [&](int iterations) {
    const auto [a, b] = peft::principal_part(weight, 2, 1, iterations, random);
    return (weight - b.mm(a)).norm().item<double>();
  };
  EXPECT_GT(rest(0), rest(16) * 1.001);
  expect_close(rest(16), rest(-1), "norm of the rest", 1e-3);
}

}  // namespace
}  // namespace megalith::testing
