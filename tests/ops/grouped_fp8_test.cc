#include "megalith/ops/gemm/grouped_fp8.h"

#include <cmath>

#include "megalith/ops/gemm/fp8.h"
#include "tests/ops/compare.h"
#include "tests/support/expect.h"

namespace megalith::ops {
namespace {

using testing::expect_close;

at::Tensor random_rows(at::IntArrayRef sizes, uint64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randn(sizes, generator, at::kFloat);
}

at::Tensor rows_in_fp32(const Fp8Rows& x) { return x.values.to(at::kFloat) * x.inverse_scale.unsqueeze(-1); }
at::Tensor raw_bytes(const at::Tensor& fp8) { return fp8.contiguous().view(at::kByte); }

// Rows of very different sizes: one scale for all would lose the small ones.
TEST(GroupedFp8, EveryRowHasItsOwnScale) {
  const at::Tensor x = random_rows({6, 48}, 1) * at::logspace(-12, 12, 6).unsqueeze(1);
  const Fp8Rows cast = to_fp8_rows(x);
  ASSERT_EQ(cast.inverse_scale.sizes(), at::IntArrayRef({6}));
  const at::Tensor largest = x.abs().amax(1), error = (rows_in_fp32(cast) - x).abs().amax(1);
  EXPECT_TRUE(at::allclose(rows_in_fp32(cast).abs().amax(1), largest, 1e-6, 0));
  EXPECT_LE((error / largest).max().item<double>(), 1.0 / 16);
  for (int64_t row = 0; row < 6; ++row) {
    const Fp8Rows alone = to_fp8_rows(x.narrow(0, row, 1));
    EXPECT_TRUE(raw_bytes(alone.values).equal(raw_bytes(cast.values.narrow(0, row, 1)))) << "others change row " << row;
    EXPECT_EQ(alone.inverse_scale.item<float>(), cast.inverse_scale[row].item<float>());
  }
}

TEST(GroupedFp8, RowsOfZerosAndOfWhatIsNotFinite) {
  at::Tensor x = random_rows({4, 16}, 2);
  x[0].zero_();
  x[1][3] = INFINITY;
  x[2][3] = NAN;
  const Fp8Rows cast = to_fp8_rows(x);
  EXPECT_TRUE(cast.inverse_scale.narrow(0, 0, 3).eq(1).all().item<bool>());
  EXPECT_EQ(rows_in_fp32(cast)[0].abs().max().item<float>(), 0);
  EXPECT_EQ(rows_in_fp32(cast)[1][3].item<float>(), 448) << "e4m3 has no infinity";
  EXPECT_TRUE(std::isnan(rows_in_fp32(cast)[2][3].item<float>()));
  EXPECT_EQ(to_fp8_rows(at::empty({0, 16})).values.size(0), 0);
}

TEST(GroupedFp8, ColumnsAreTheRowsOfTheTranspose) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor w = random_rows({3, 32, 48}, 3).to(dtype);
    const Fp8Rows columns = to_fp8_columns(w), rows = to_fp8_rows(w.transpose(1, 2).contiguous());
    EXPECT_EQ(columns.values.sizes(), at::IntArrayRef({3, 48, 32}));
    EXPECT_TRUE(raw_bytes(columns.values).equal(raw_bytes(rows.values)));
    EXPECT_TRUE(columns.inverse_scale.equal(rows.inverse_scale));
  }
}

TEST(GroupedFp8, ProductsAreThoseOfTheRoundedFactors) {
  const GroupCounts counts{5, 0, 11};
  const at::Tensor w = random_rows({3, 32, 48}, 4);
  const Fp8Rows x8 = to_fp8_rows(random_rows({16, 48}, 5)), w8 = to_fp8_rows(w);
  expect_close(grouped_fp8_mm(x8, w8, counts, at::kFloat, true),
               grouped_mm_transposed(rows_in_fp32(x8), rows_in_fp32(w8), counts), 1e-6);
  const Fp8Rows dy8 = to_fp8_rows(random_rows({16, 32}, 6)), turned = to_fp8_columns(w);
  expect_close(grouped_fp8_mm(dy8, turned, counts, at::kFloat, false),
               grouped_mm(rows_in_fp32(dy8), rows_in_fp32(turned).transpose(1, 2).contiguous(), counts), 1e-6);
  EXPECT_EQ(grouped_fp8_mm(x8, w8, counts, at::kBFloat16, true).scalar_type(), at::kBFloat16);
}

TEST(GroupedFp8, RefusesWhatDoesNotFit) {
  const Fp8Rows x = to_fp8_rows(random_rows({16, 48}, 7)), w = to_fp8_rows(random_rows({2, 32, 48}, 8));
  testing::expect_error<InternalError>([] { to_fp8_rows(at::ones({4, 24})); }, {"multiple of 16", "[4, 24]"});
  testing::expect_error<InternalError>([] { to_fp8_columns(at::ones({2, 24, 32})); }, {"[2, 24, 32]"});
  testing::expect_error<InternalError>([&] { grouped_fp8_mm(x, w, {16}, at::kFloat, true); }, {"for 1 groups"});
  testing::expect_error<InternalError>([&] { grouped_fp8_mm(x, w, {8, 7}, at::kFloat, true); }, {"15 rows"});
}

TEST(GroupedFp8, IsEmulatedWithoutAGpu) { EXPECT_TRUE(has_grouped_fp8(at::kCPU)); }

}  // namespace
}  // namespace megalith::ops
