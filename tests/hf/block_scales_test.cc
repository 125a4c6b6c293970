// Weights in fp8 with a scale per block: values, rectangles that cut blocks, tails, and what is refused.
#include "megalith/hf/block_scales.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "megalith/hf/name_map.h"
#include "megalith/hf/scalar_type.h"
#include "megalith/hf/scale_block.h"
#include "megalith/hf/weight_writer.h"
#include "tests/hf/file_support.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"

namespace megalith::hf {
namespace {

using testing::error_of;
using testing::expect_contains;
using testing::expect_identical;
using Tensors = std::map<std::string, at::Tensor>;

constexpr ScaleBlock kSmall{.rows = 3, .columns = 4};

// Multiplies element by element, as the format is defined.
at::Tensor multiplied(const at::Tensor& weight, const at::Tensor& scales, const ScaleBlock& block) {
  at::Tensor values = weight.to(at::kFloat).clone();
  for (int64_t row = 0; row < values.size(0); ++row)
    for (int64_t column = 0; column < values.size(1); ++column)
      values[row][column] *= scales[row / block.rows][column / block.columns];
  return values;
}

// Blocks with ends in both directions: [8, 10] in blocks of [3, 4].
BlockQuantized example() { return block_quantized(at::arange(80, at::kFloat).sub(37).view({8, 10}), kSmall); }

void write_model(const std::filesystem::path& folder, const Tensors& tensors) {
  std::vector<WeightSpec> specs;
  for (const auto& [name, tensor] : tensors)
    specs.push_back({name, dtype_of(tensor.scalar_type()), tensor.sizes().vec()});
  WeightWriter writer(folder, specs);
  writer.create_files();
  for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
  writer.sync();
}

TEST(BlockScales, ABlockAtTheEndIsSmaller) {
  EXPECT_EQ(block_scale_shape({576, 7168}, ScaleBlock{}), (std::vector<int64_t>{5, 56}));
  EXPECT_EQ(block_scale_shape({4, 8, 10}, kSmall), (std::vector<int64_t>{4, 3, 3}));
}

TEST(BlockScales, EveryRectangleHasTheValuesOfTheWhole) {
  const auto [weight, scales] = example();
  const at::Tensor whole = multiplied(weight, scales, kSmall);
  for (int64_t row = 0; row < 8; row += 2)
    for (int64_t column = 0; column < 10; column += 5) {
      const auto part = [&](const at::Tensor& of) { return of.narrow(0, row, 2).narrow(1, column, 5); };
      expect_identical(dequantized(part(weight), scales, {row, column}, kSmall), part(whole), "a rectangle");
      at::Tensor copy = at::empty({2, 5}, at::kBFloat16);
      copy_dequantized(copy, part(weight), scales, {row, column}, kSmall);
      expect_identical(copy, part(whole).to(at::kBFloat16), "a rectangle in bf16");
    }
}

TEST(BlockScales, AStackHasScalesPerMatrix) {
  const auto [weight, scales] = example();
  const at::Tensor stack = at::stack({weight.to(at::kFloat), weight.to(at::kFloat)}).to(at::kFloat8_e4m3fn);
  const at::Tensor values = dequantized(stack.narrow(0, 1, 1), at::stack({scales, scales * 2}), {1, 0, 0}, kSmall);
  expect_identical(values[0], multiplied(weight, scales * 2, kSmall), "the second matrix");
  const BlockQuantized again = block_quantized(values.expand({2, 8, 10}), kSmall);
  EXPECT_EQ(again.scales.sizes(), (std::vector<int64_t>{2, 3, 3}));
}

TEST(BlockScales, TheLargestValueOfABlockBecomesTheLargestOfTheFormat) {
  const auto [weight, scales] = example();
  EXPECT_EQ(weight.to(at::kFloat)[0][0].item<float>(), -448);  // -37, the largest of its block
  EXPECT_FLOAT_EQ(scales[0][0].item<float>(), 37.0F / 448);
  const BlockQuantized zeros = block_quantized(at::zeros({4, 4}), kSmall);
  expect_identical(zeros.scales, at::ones({2, 1}), "scales of zeros");
  expect_identical(zeros.weight.to(at::kFloat), at::zeros({4, 4}), "zeros");
}

TEST(BlockScales, ScalesOfPowersOfTwoComeBackBitForBit) {
  at::Tensor codes = at::arange(80, at::kFloat).sub(40).view({8, 10}).to(at::kFloat8_e4m3fn).to(at::kFloat);
  for (int64_t row = 0; row < 8; row += 3)
    for (int64_t column = 0; column < 10; column += 4) codes[row][column] = 448;
  const at::Tensor weight = codes.to(at::kFloat8_e4m3fn);
  const at::Tensor scales = at::pow(2.0, at::arange(9, at::kFloat).sub(6)).view({3, 3});
  const BlockQuantized again = block_quantized(dequantized(weight, scales, {0, 0}, kSmall).to(at::kBFloat16), kSmall);
  expect_identical(again.scales, scales, "scales");
  expect_identical(again.weight.to(at::kFloat), codes, "codes");
}

// Expects the codes and scales that transformers' Fp8Quantize computes (tests/data/foreign/make_fp8.py).
TEST(BlockScales, EqualTransformers) {
  const WeightFiles files("tests/data/foreign", "fp8_blocks.safetensors");
  const BlockQuantized ours = block_quantized(files.tensor("weight"), {.rows = 8, .columns = 16});
  expect_identical(ours.scales, files.tensor("scales"), "scales");
  expect_identical(ours.weight.to(at::kFloat), files.tensor("codes").to(at::kFloat), "codes");
}

// A folder with one weight in fp8 and one in fp32, as a mapping with block scales reads it.
class ScaledFolder : public ::testing::Test {
 protected:
  void write(const std::function<void(Tensors&)>& change = {}) {
    Tensors tensors{{"a.weight", quantized_.weight}, {"a.weight_scale_inv", quantized_.scales}, {"b", at::ones({2})}};
    if (change) change(tensors);
    write_model(folder_.path(), tensors);
  }
  std::string problem() const {
    return error_of<DataError>([&] { mapping_.check_files(WeightFiles(folder_.path())); });
  }

  const BlockQuantized quantized_ = example();
  const NameMap map_{.rules = {{"a.weight", {"x"}}, {"b", {"y"}}}, .scale_block = kSmall};
  const TensorMapping mapping_{map_, {{"x", {8, 10}}, {"y", {2}}}};
  TempFolder folder_;
};

TEST_F(ScaledFolder, SlicesThatCutBlocksAreRead) {
  write();
  EXPECT_EQ(problem(), "");
  const WeightFiles files(folder_.path());
  const at::Tensor whole = at::zeros({8, 10});
  std::vector<parallel::ShardedTensor> parts;
  for (int64_t row = 0; row < 8; row += 4)
    for (int64_t column = 0; column < 10; column += 5)
      parts.push_back({"x", {8, 10}, {row, column}, whole.narrow(0, row, 4).narrow(1, column, 5)});
  mapping_.read(files, parts);
  expect_identical(whole, multiplied(quantized_.weight, quantized_.scales, kSmall), "values");
  expect_identical(mapping_.values_in(files, "a.weight", at::kFloat), whole, "values of the whole");
}

TEST_F(ScaledFolder, ScalesInBf16AreRead) {
  write([](Tensors& tensors) { tensors["a.weight_scale_inv"] = tensors["a.weight_scale_inv"].to(at::kBFloat16); });
  EXPECT_EQ(problem(), "");
}

TEST_F(ScaledFolder, ScalesThatDoNotFitAreNamed) {
  write([](Tensors& tensors) { tensors.erase("a.weight_scale_inv"); });
  expect_contains(problem(), "lacks its scales, a.weight_scale_inv");
  write([](Tensors& tensors) { tensors["a.weight_scale_inv"] = at::ones({3, 2}); });
  expect_contains(problem(), "a.weight_scale_inv: [3, 2] in the file, [3, 3] by weight_block_size");
  write([](Tensors& tensors) { tensors["a.weight_scale_inv"] = at::ones({3, 3}, at::kInt); });
  expect_contains(problem(), "a.weight_scale_inv: I32 in the file");
  write([](Tensors& tensors) { tensors["c.weight_scale_inv"] = at::ones({3, 3}); });
  expect_contains(problem(), "unexpected (1):\n    c.weight_scale_inv");
}

}  // namespace
}  // namespace megalith::hf
