#include "megalith/ops/gemm/fp8.h"

#include "megalith/ops/gemm/fp8_blocks.h"
#include "tests/ops/compare.h"
#include "tests/support/expect.h"

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
    const Fp8Matrix cast = to_fp8(x, {.kind = kind});
    EXPECT_TRUE(at::equal(cast.rows.view(at::kByte).t(), cast.columns.view(at::kByte)));
    EXPECT_NEAR(value_of(cast).abs().max().item<double>(), x.abs().max().item<double>(), 1e-9);
    const at::Tensor error = (value_of(cast) - x).abs(), large = x.abs() > 0.02 * x.abs().max();
    EXPECT_LE((error / x.abs()).masked_select(large).max().item<double>(), step * (1 + 1e-5));
  }
}

TEST(Fp8, OfZeros) {
  const Fp8Matrix cast = to_fp8(at::zeros({16, 16}), {});
  EXPECT_EQ(value_of(cast).abs().max().item<double>(), 0);
}

TEST(Fp8, TakesAGivenScaleAndTellsTheLargestNumber) {
  const at::Tensor x = random({16, 32}, 1), seen = at::full({1}, 0.5), scale = at::full({1}, 200.0);
  const Fp8Matrix cast = to_fp8(x, {.scale = scale, .seen = seen});
  const double largest = x.abs().max().item<double>();
  EXPECT_EQ(seen.item<double>(), largest);
  EXPECT_GT(largest * 200, 448);
  EXPECT_EQ(value_of(cast).abs().max().item<float>(), 448.0F / 200);  // no infinity
  to_fp8(x * 0.1, {.scale = scale, .seen = seen});
  EXPECT_EQ(seen.item<double>(), largest) << "a smaller one does not count";
  to_fp8(x * 2, {.seen = seen});
  EXPECT_EQ(seen.item<double>(), 2 * largest);
}

TEST(Fp8, MakesTheOrdersThatAreWanted) {
  const at::Tensor x = random({16, 32}, 1);
  const Fp8Matrix both = to_fp8(x, {}), rows = to_fp8(x, {.columns = false}),
                  columns = to_fp8(x, {.rows = false, .scale = both.scale});
  EXPECT_FALSE(rows.columns.defined());
  EXPECT_FALSE(columns.rows.defined());
  EXPECT_TRUE(rows.rows.view(at::kByte).equal(both.rows.view(at::kByte)));
  EXPECT_TRUE(columns.columns.view(at::kByte).equal(both.columns.view(at::kByte)));
}

TEST(Fp8, ProductsAreThoseOfTheRoundedFactors) {
  const Fp8Matrix a = to_fp8(random({32, 48}, 1), {.kind = Fp8Kind::kE5m2}), b = to_fp8(random({16, 48}, 2), {});
  const at::Tensor expected = value_of(a).mm(value_of(b).t());
  testing::expect_close(fp8_mm(a.rows, a.inverse_scale, b.rows, b.inverse_scale, at::kFloat, true), expected, 1e-6);
  const at::Tensor out = at::ones({32, 16});
  add_fp8_mm(out, a.rows, a.inverse_scale, b.rows, b.inverse_scale, 0);
  testing::expect_close(out, expected, 1e-6);
  add_fp8_mm(out, a.rows, a.inverse_scale, b.rows, b.inverse_scale, 1);
  testing::expect_close(out, 2 * expected, 1e-6);
  add_fp8_mm(out, a.rows, a.inverse_scale, b.rows, b.inverse_scale, 0.5);
  testing::expect_close(out, 2 * expected, 1e-6);
}

TEST(Fp8, TakesMultiplesOf16) {
  EXPECT_TRUE(fits_fp8(16, 4096));
  EXPECT_FALSE(fits_fp8(8, 16));
  EXPECT_FALSE(fits_fp8(16, 24));
  EXPECT_FALSE(fits_fp8(0, 16));
  EXPECT_EQ(fp8_width_multiple(Fp8Scaling::kDelayed), 16);
  EXPECT_EQ(fp8_token_multiple(Fp8Scaling::kTensor), 16);
}

// Blocks of very different sizes: one scale would lose the small ones.
at::Tensor uneven(int64_t r, int64_t c) {
  at::Tensor x = random({r, c}, 3);
  x.narrow(1, 0, 128).mul_(1e-4);
  x.narrow(0, 0, 1).mul_(1e3);
  return x;
}

TEST(Fp8Blocks, EachStripHasAScaleOfItsOwn) {
  const at::Tensor x = uneven(256, 384);
  const Fp8Matrix cast = to_fp8_blocks(x, Fp8Kind::kE4m3, Fp8Blocks::kStrips);
  EXPECT_EQ(cast.inverse_scale.sizes(), at::IntArrayRef({256, 3}));
  EXPECT_EQ(cast.inverse_scale.stride(0), 1);
  EXPECT_EQ(cast.columns_inverse_scale.sizes(), at::IntArrayRef({384, 2}));
  const at::Tensor rows = cast.rows.to(at::kFloat) * cast.inverse_scale.repeat_interleave(128, 1);
  const at::Tensor columns = cast.columns.to(at::kFloat) * cast.columns_inverse_scale.repeat_interleave(128, 1);
  const at::Tensor largest = x.view({256, 3, 128}).abs().amax(-1) / cast.inverse_scale;  // as numbers of fp8
  EXPECT_LE(largest.max().item<double>(), 448);
  EXPECT_GT(largest.min().item<double>(), 224);
  EXPECT_TRUE(cast.inverse_scale.log2().equal(cast.inverse_scale.log2().round())) << "powers of two";
  for (const int64_t begin : {0, 128}) {  // small numbers as exact as large ones
    const at::Tensor part = x.narrow(1, begin, 128);
    EXPECT_LT(((rows.narrow(1, begin, 128) - part).norm() / part.norm()).item<double>(), 0.04);
  }
  EXPECT_LT(((columns.t() - x).norm() / x.norm()).item<double>(), 0.04);
}

TEST(Fp8Blocks, SquaresAreTheSameInBothOrders) {
  const at::Tensor x = uneven(256, 384);
  const Fp8Matrix cast = to_fp8_blocks(x, Fp8Kind::kE4m3, Fp8Blocks::kSquares);
  EXPECT_EQ(cast.inverse_scale.sizes(), at::IntArrayRef({2, 3}));
  EXPECT_TRUE(cast.columns_inverse_scale.equal(cast.inverse_scale.t()));
  EXPECT_TRUE(cast.rows.view(at::kByte).t().equal(cast.columns.view(at::kByte)));
  const Fp8Matrix one = to_fp8_blocks(x, Fp8Kind::kE4m3, Fp8Blocks::kSquares, /*rows=*/false);
  EXPECT_FALSE(one.rows.defined());
  EXPECT_TRUE(one.columns.view(at::kByte).equal(cast.columns.view(at::kByte)));
}

TEST(Fp8Blocks, ProductsOfAllThreeKinds) {
  const at::Tensor x = uneven(128, 512), w = random({512, 512}, 4), dy = random({128, 512}, 5);
  const Fp8Matrix x8 = to_fp8_blocks(x, Fp8Kind::kE4m3, Fp8Blocks::kStrips),
                  w8 = to_fp8_blocks(w, Fp8Kind::kE4m3, Fp8Blocks::kSquares),
                  dy8 = to_fp8_blocks(dy, Fp8Kind::kE5m2, Fp8Blocks::kStrips);
  const auto error = [](const at::Tensor& a, const at::Tensor& b) {
    return ((a - b).norm() / b.norm()).item<double>();
  };
  EXPECT_LT(error(fp8_mm(x8.rows, x8.inverse_scale, w8.rows, w8.inverse_scale, at::kFloat, true), x.mm(w.t())), 0.05);
  EXPECT_LT(
      error(fp8_mm(dy8.rows, dy8.inverse_scale, w8.columns, w8.columns_inverse_scale, at::kFloat, false), dy.mm(w)),
      0.1);
  EXPECT_LT(
      error(fp8_mm(dy8.columns, dy8.columns_inverse_scale, x8.columns, x8.columns_inverse_scale, at::kFloat, false),
            dy.t().mm(x)),
      0.1);
}

TEST(Fp8Blocks, BlocksOfZerosAndSizesThatDoNotFit) {
  const Fp8Matrix cast = to_fp8_blocks(at::zeros({128, 128}), Fp8Kind::kE4m3, Fp8Blocks::kStrips);
  EXPECT_TRUE(cast.inverse_scale.eq(1).all().item<bool>());
  EXPECT_EQ(fp8_width_multiple(Fp8Scaling::kBlocks), 512);
  EXPECT_EQ(fp8_token_multiple(Fp8Scaling::kBlocks), 128);
  testing::expect_error<InternalError>(
      [] {
        to_fp8_blocks(at::zeros({128, 64}), Fp8Kind::kE4m3, Fp8Blocks::kStrips);
      },
      {"[128, 64]", "multiples of 128"});
}

}  // namespace
}  // namespace megalith::ops
