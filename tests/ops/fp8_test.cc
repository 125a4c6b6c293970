#include "megalith/ops/fp8.h"

#include "tests/ops/compare.h"

namespace megalith::ops {
namespace {

at::Tensor random(at::IntArrayRef sizes, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::kFloat);
}

at::Tensor value_of(const Fp8Matrix& x) { return x.rows.to(at::kFloat) * x.inverse_scale; }

TEST(Fp8, KeepsTheLargestNumberAndRoundsTheOthers) {
  const at::Tensor x = random({32, 48}, 1) * 1e-3;
  for (const auto& [kind, step] : {std::pair{Fp8Kind::kE4m3, 1.0 / 16}, std::pair{Fp8Kind::kE5m2, 1.0 / 8}}) {
    const Fp8Matrix cast = to_fp8(x, kind);
    EXPECT_TRUE(at::equal(cast.rows.view(at::kByte).t(), cast.columns.view(at::kByte)));
    EXPECT_NEAR(value_of(cast).abs().max().item<double>(), x.abs().max().item<double>(), 1e-9);
    const at::Tensor error = (value_of(cast) - x).abs(), large = x.abs() > 0.02 * x.abs().max();
    EXPECT_LE((error / x.abs()).masked_select(large).max().item<double>(), step * (1 + 1e-5));
  }
}

TEST(Fp8, OfZeros) {
  const Fp8Matrix cast = to_fp8(at::zeros({16, 16}), Fp8Kind::kE4m3);
  EXPECT_EQ(value_of(cast).abs().max().item<double>(), 0);
}

TEST(Fp8, ProductsAreThoseOfTheRoundedFactors) {
  const Fp8Matrix a = to_fp8(random({32, 48}, 1), Fp8Kind::kE5m2), b = to_fp8(random({16, 48}, 2), Fp8Kind::kE4m3);
  const at::Tensor expected = value_of(a).mm(value_of(b).t());
  testing::expect_close(fp8_mm(a.rows, a.inverse_scale, b.rows, b.inverse_scale, at::kFloat, true), expected, 1e-6);
  const at::Tensor out = at::ones({32, 16});
  fp8_mm_out(out, a.rows, a.inverse_scale, b.rows, b.inverse_scale);
  testing::expect_close(out, expected, 1e-6);
}

TEST(Fp8, TakesMultiplesOf16) {
  EXPECT_TRUE(fits_fp8(16, 4096));
  EXPECT_FALSE(fits_fp8(8, 16));
  EXPECT_FALSE(fits_fp8(16, 24));
  EXPECT_FALSE(fits_fp8(0, 16));
}

}  // namespace
}  // namespace megalith::ops
