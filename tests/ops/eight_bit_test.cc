// Numbers in 8 bits: their sizes, and rectangles of matrices. tests/hf/eight_bit_files_test.cc compares the numbers
// with those of bitsandbytes.
#include "megalith/ops/quantize/eight_bit.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/ops/quantize/matrix_rectangle.h"
#include "megalith/ops/quantize/quantized.h"
#include "tests/ops/compare.h"

namespace megalith::ops {
namespace {

using at::Tensor;
using testing::random_tensor;

Tensor numbers_from(const EightBitTensor& matrix, int64_t row, int64_t column, int64_t rows, int64_t columns,
                    at::ScalarType dtype) {
  const Tensor to = at::full({rows, columns}, -77, dtype);
  read_eight_bit(matrix, row, column, to);
  return to;
}

TEST(EightBit, TakesAByteAndAScalePerRow) {
  const EightBitTensor tensor = to_eight_bit(random_tensor({24, 80}, 1).to(at::kFloat));
  EXPECT_EQ(tensor.codes.nbytes() + tensor.scales.nbytes(), 24 * 80 + 24 * 4);
  EXPECT_EQ(quantized_bytes(EightBitFormat{}, 24 * 80, 24), 24 * 80 + 24 * 4);
  EXPECT_EQ(quantized_bytes(FourBitFormat{.double_quantization = false}, 128, 2), 128 / 2 + 2 * 4);
}

// The largest number of a row is exact but for two roundings, and no error is larger than half a step and the rounding
// to fp16.
TEST(EightBit, NumbersAreNearTheirOriginals) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const Tensor x = random_tensor({37, 53}, 2).to(dtype);
    const Tensor y = from_eight_bit(to_eight_bit(x), at::kFloat);
    const Tensor exact = x.to(at::kHalf).to(at::kDouble);
    const Tensor largest = std::get<0>(exact.abs().max(1, /*keepdim=*/true));
    EXPECT_LE(((y - exact).abs() / largest).max().item<double>(), 0.5 / 127 + 1e-6);
    const Tensor ends = y.gather(1, exact.abs().argmax(1, /*keepdim=*/true)).abs();
    EXPECT_LE(((ends - largest).abs() / largest).max().item<double>(), 2e-7);
  }
}

TEST(EightBit, RowsOfZerosStayZero) {
  const Tensor x = random_tensor({3, 64}, 3).to(at::kFloat);
  x[1].zero_();
  const EightBitTensor tensor = to_eight_bit(x);
  EXPECT_TRUE(tensor.codes[1].eq(0).all().item<bool>());
  EXPECT_EQ(tensor.scales[1].item<float>(), 0);
  EXPECT_TRUE(from_eight_bit(tensor, at::kFloat)[1].eq(0).all().item<bool>());
}

// A number is the same in every rectangle that holds it: scales are those of whole rows.
TEST(EightBit, RectanglesHaveTheNumbersOfTheWhole) {
  for (const int64_t width : {64, 37}) {
    const int64_t rows = 22;
    const EightBitTensor whole = to_eight_bit(random_tensor({rows, width}, 4).to(at::kFloat));
    const Tensor all = from_eight_bit(whole, at::kFloat);
    for (const auto& [r, rs] : {std::pair<int64_t, int64_t>{0, rows}, {0, 11}, {11, 11}, {5, 3}, {7, 0}})
      for (const auto& [c, cs] :
           {std::pair<int64_t, int64_t>{0, width}, {0, width / 2}, {width / 2, width / 2}, {3, 29}}) {
        const EightBitTensor part = cut_eight_bit(whole, {r, rs, c, cs, width}, at::kCPU);
        EXPECT_EQ(part.codes.storage().nbytes(), static_cast<size_t>(rs * cs)) << "the whole is not kept";
        EXPECT_TRUE(numbers_from(part, 0, 0, rs, cs, at::kFloat).equal(all.narrow(0, r, rs).narrow(1, c, cs)))
            << width << ": " << rs << " rows from " << r << ", " << cs << " columns from " << c;
        if (rs < 3) continue;
        for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf})
          EXPECT_TRUE(numbers_from(part, 1, 2, rs - 2, cs - 3, dtype)
                          .equal(all.narrow(0, r + 1, rs - 2).narrow(1, c + 2, cs - 3).to(dtype)));
      }
  }
}

TEST(EightBit, OutsideIsRefused) {
  const EightBitTensor whole = to_eight_bit(random_tensor({4, 64}, 3).to(at::kFloat));
  EXPECT_THROW(cut_eight_bit(whole, {0, 5, 0, 64, 64}, at::kCPU), InternalError);
  EXPECT_THROW(cut_eight_bit(whole, {0, 4, 8, 64, 64}, at::kCPU), InternalError);
  EXPECT_THROW(cut_eight_bit(whole, {0, 4, 0, 32, 32}, at::kCPU), InternalError);
  const EightBitTensor part = cut_eight_bit(whole, {0, 4, 0, 32, 64}, at::kCPU);
  EXPECT_THROW(numbers_from(part, 0, 1, 4, 32, at::kFloat), InternalError);
  EXPECT_THROW(to_eight_bit(at::ones({4})), InternalError);
}

}  // namespace
}  // namespace megalith::ops
