// Weights in 8 bits in files, and their numbers, codes and scales: those of bitsandbytes
// (tests/data/eight_bit/make.py).
#include "megalith/hf/eight_bit_files.h"

#include <ATen/ATen.h>

#include "megalith/hf/weight_files.h"
#include "tests/hf/file_support.h"
#include "tests/support/expect.h"

namespace megalith::hf {
namespace {

using testing::expect_contains;

const WeightFiles& eight_bit_weights() {
  static const WeightFiles files("tests/data/eight_bit", "quantized.safetensors");
  return files;
}

const std::vector<std::string> kEightBitCases{"normal", "half", "wide", "adversarial"};

ops::EightBitTensor stored_eight_bit(const std::string& name) {
  return std::get<ops::EightBitTensor>(*eight_bit_weights().quantized(name + ".weight"));
}

TEST(EightBitGolden, WeightsAreQuantizedAsByBitsandbytes) {
  for (const std::string& name : kEightBitCases) {
    const ops::EightBitTensor expected = stored_eight_bit(name);
    const ops::EightBitTensor actual = ops::to_eight_bit(eight_bit_weights().tensor(name + ".input"));
    EXPECT_TRUE(actual.codes.equal(expected.codes)) << name << ": codes " << actual.codes.ne(expected.codes).nonzero();
    EXPECT_TRUE(actual.scales.equal(expected.scales)) << name;
  }
}

TEST(EightBitGolden, NumbersAreThoseOfBitsandbytes) {
  for (const std::string& name : kEightBitCases) {
    const at::Tensor numbers = eight_bit_weights().tensor(name + ".numbers");
    EXPECT_TRUE(ops::from_eight_bit(stored_eight_bit(name), at::kFloat).equal(numbers)) << name;
    const at::Tensor shown = eight_bit_weights().tensor(name + ".weight");
    EXPECT_EQ(shown.scalar_type(), at::kFloat) << name;
    EXPECT_TRUE(shown.equal(numbers)) << name;
  }
}

TEST(EightBitFiles, AreShownAsOneTensorEach) {
  const WeightFiles& files = eight_bit_weights();
  EXPECT_EQ(files.names().size(), 3 * kEightBitCases.size());  // inputs, weights and their numbers
  const TensorInfo* info = files.find("adversarial.weight");
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->dtype, Dtype::kF32);
  EXPECT_EQ(info->shape, (std::vector<int64_t>{10, 21}));
  EXPECT_FALSE(files.quantized("normal.input").has_value());
  files.release("adversarial.weight");
}

TEST(EightBitFiles, WhatCannotBeReadIsRefused) {
  const TensorInfo weight{.name = "up.weight", .dtype = Dtype::kI8, .shape = {2, 3}};
  const TensorInfo scales{.name = "up.SCB", .dtype = Dtype::kF32, .shape = {2}};
  const auto refusal = [&](TensorInfo w, TensorInfo s, const at::Tensor& format) {
    return message_of<DataError>([&] { check_eight_bit(w, s, format, "folder"); });
  };
  check_eight_bit(weight, scales, {}, "folder");
  check_eight_bit(weight, scales, at::zeros({}, at::kByte), "folder");
  TensorInfo other = weight;
  other.dtype = Dtype::kF16;
  expect_contains(refusal(other, scales, {}), "must be a matrix of type I8");
  other = scales;
  other.shape = {3};
  expect_contains(refusal(weight, other, {}), "one number of type F32 per row");
  expect_contains(refusal(weight, scales, at::ones({}, at::kByte)), "weight_format");
  EXPECT_EQ(eight_bit_name("a.up.SCB"), "a.up.weight");
  EXPECT_EQ(eight_bit_name("a.up.weight"), "");
  // Scales without a weight.
  const TempFolder folder;
  put_file(folder / "model.safetensors",
           safetensors_bytes(R"({"up.SCB":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", std::string(8, '\0')));
  expect_contains(message_of<DataError>([&] { const WeightFiles files(folder.path()); }), "no such tensor");
}

}  // namespace
}  // namespace megalith::hf
