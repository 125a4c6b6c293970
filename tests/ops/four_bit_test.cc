// Numbers in 4 bits: their sizes, and rectangles of matrices. tests/hf/four_bit_files_test.cc compares the numbers with
// those of bitsandbytes.
#include "megalith/ops/quantize/four_bit.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "tests/ops/compare.h"
#include "tests/support/expect.h"

namespace megalith::ops {
namespace {

using at::Tensor;
using testing::random_tensor;

const std::vector<FourBitFormat> kFormats{
    {FourBitKind::kNf4, true}, {FourBitKind::kNf4, false}, {FourBitKind::kFp4, true}, {FourBitKind::kFp4, false}};

Tensor rectangle_of(const FourBitMatrix& matrix, int64_t row, int64_t column, int64_t rows, int64_t columns,
                    at::ScalarType dtype) {
  const Tensor to = at::full({rows, columns}, -77, dtype);
  read_four_bit(matrix, row, column, to);
  return to;
}

TEST(FourBit, TakesFourBitsAndScales) {
  EXPECT_NEAR(8 * four_bit_bytes({}), 4.127, 1e-3);
  EXPECT_NEAR(8 * four_bit_bytes({.double_quantization = false}), 4.5, 1e-9);
  const FourBitTensor tensor = to_four_bit(random_tensor({256, 256}, 1).to(at::kFloat), {});
  EXPECT_EQ(tensor.codes.nbytes() + tensor.scales.nbytes() + tensor.nested.nbytes(), 256 * 256 / 2 + 1024 + 4 * 4);
}

// The largest numbers of a block are exact, and no error is larger than half of the widest gap between two values.
TEST(FourBit, NumbersAreNearTheirOriginals) {
  for (const FourBitKind kind : {FourBitKind::kNf4, FourBitKind::kFp4})
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      const Tensor x = random_tensor({37, 53}, 2).to(dtype);  // the last block has 41 numbers, the last byte one
      const Tensor y = from_four_bit(to_four_bit(x, {kind, false}), at::kFloat).view({37, 53});
      const Tensor exact = x.to(at::kFloat);
      EXPECT_EQ(y.abs().max().item<float>(), exact.abs().max().item<float>());
      const double gap = kind == FourBitKind::kNf4 ? 0.16 : 0.17;
      EXPECT_LE((y - exact).abs().max().item<double>(), gap * exact.abs().max().item<double>());
    }
}

TEST(FourBit, NestedValuesAreSorted) {
  const Tensor values = nested_values();
  ASSERT_EQ(values.numel(), 256);
  EXPECT_TRUE(values.narrow(0, 1, 255).gt(values.narrow(0, 0, 255)).all().item<bool>());
  EXPECT_EQ(values[127].item<float>(), 0);
  EXPECT_EQ(values[255].item<float>(), 1);
}

TEST(FourBit, BlocksOfZerosStayZero) {
  const Tensor x = at::zeros({3, 64});
  for (const FourBitKind kind : {FourBitKind::kNf4, FourBitKind::kFp4})
    EXPECT_TRUE(from_four_bit(to_four_bit(x, {kind, false}), at::kFloat).eq(0).all().item<bool>());
}

// A number is the same in every rectangle that holds it, wherever blocks begin in its rows.
TEST(FourBit, RectanglesHaveTheNumbersOfTheWhole) {
  for (const int64_t width : {64, 128, 96, 37, 200})
    for (const FourBitFormat& format : kFormats) {
      const int64_t rows = 22;
      const FourBitTensor whole = to_four_bit(random_tensor({rows, width}, 3).to(at::kFloat), format);
      const Tensor all = from_four_bit(whole, at::kFloat).view({rows, width});
      for (const auto& [r, rs] : {std::pair<int64_t, int64_t>{0, rows}, {0, 11}, {11, 11}, {5, 3}, {7, 0}})
        for (const auto& [c, cs] :
             {std::pair<int64_t, int64_t>{0, width}, {0, width / 2}, {width / 2, width / 2}, {3, 29}}) {
          const FourBitMatrix matrix = cut_four_bit(whole, {r, rs, c, cs, width}, at::kCPU);
          EXPECT_TRUE(rectangle_of(matrix, 0, 0, rs, cs, at::kFloat).equal(all.narrow(0, r, rs).narrow(1, c, cs)))
              << width << ": " << rs << " rows from " << r << ", " << cs << " columns from " << c;
          if (rs < 3) continue;
          // A part of the rectangle, in 16 bits.
          const Tensor part = rectangle_of(matrix, 1, 2, rs - 2, cs - 3, at::kBFloat16);
          EXPECT_TRUE(part.equal(all.narrow(0, r + 1, rs - 2).narrow(1, c + 2, cs - 3).to(at::kBFloat16)));
        }
    }
}

TEST(FourBit, OutsideIsRefused) {
  const FourBitTensor whole = to_four_bit(random_tensor({4, 64}, 3).to(at::kFloat), {});
  EXPECT_THROW(cut_four_bit(whole, {0, 5, 0, 64, 64}, at::kCPU), InternalError);
  EXPECT_THROW(cut_four_bit(whole, {0, 4, 8, 64, 64}, at::kCPU), InternalError);
  const FourBitMatrix matrix = cut_four_bit(whole, {0, 4, 0, 32, 64}, at::kCPU);
  EXPECT_THROW(rectangle_of(matrix, 0, 1, 4, 32, at::kFloat), InternalError);
}

}  // namespace
}  // namespace megalith::ops
