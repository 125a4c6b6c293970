// Weights in 4 bits in files, and their numbers, codes and scales: those of bitsandbytes (tests/data/four_bit/make.py).
#include "megalith/hf/four_bit_files.h"

#include <ATen/ATen.h>

#include "megalith/hf/weight_files.h"
#include "tests/hf/file_support.h"
#include "tests/support/expect.h"

namespace megalith::hf {
namespace {

using testing::expect_contains;

const WeightFiles& golden_weights() {
  static const WeightFiles files("tests/data/four_bit", "quantized.safetensors");
  return files;
}

struct FourBitCase {
  const char* name;
  ops::FourBitFormat format;
};
const std::vector<FourBitCase> kFourBitCases{
    {"normal_nf4", {ops::FourBitKind::kNf4, false}},      {"normal_fp4", {ops::FourBitKind::kFp4, false}},
    {"adversarial_nf4", {ops::FourBitKind::kNf4, false}}, {"adversarial_fp4", {ops::FourBitKind::kFp4, false}},
    {"wide_nf4", {ops::FourBitKind::kNf4, true}},         {"wide_fp4", {ops::FourBitKind::kFp4, true}}};

ops::FourBitTensor stored_four_bit(const std::string& name) {
  return std::get<ops::FourBitTensor>(*golden_weights().quantized(name + ".weight"));
}

std::string input_of(const std::string& name) { return name.substr(0, name.find('_')) + ".input"; }

TEST(FourBitGolden, WeightsAreQuantizedAsByBitsandbytes) {
  for (const auto& [name, format] : kFourBitCases) {
    SCOPED_TRACE(name);
    const ops::FourBitTensor expected = stored_four_bit(name);
    const at::Tensor input = golden_weights().tensor(input_of(name));
    const ops::FourBitTensor actual = ops::to_four_bit(input, format);
    EXPECT_EQ(actual.values, expected.values);
    EXPECT_EQ(actual.numel, expected.numel);
    EXPECT_TRUE(actual.codes.equal(expected.codes)) << "bytes " << actual.codes.ne(expected.codes).nonzero();
    EXPECT_TRUE(actual.scales.equal(expected.scales));
    EXPECT_EQ(actual.nested.defined(), expected.nested.defined());
    if (!expected.nested.defined()) continue;
    EXPECT_TRUE(actual.nested.equal(expected.nested));
    EXPECT_EQ(actual.offset, expected.offset);
    // The values are those of torch.linspace, whose last bit depends on the instructions that it is compiled for.
    EXPECT_LE((actual.map - expected.map).abs().max().item<double>(), 1e-7);
  }
}

TEST(FourBitGolden, NumbersAreThoseOfBitsandbytes) {
  for (const FourBitCase& each : kFourBitCases) {
    const std::string name = each.name;
    const at::Tensor numbers = golden_weights().tensor(name + ".numbers");
    const ops::FourBitTensor stored = stored_four_bit(name);
    EXPECT_TRUE(ops::from_four_bit(stored, at::kFloat).view(numbers.sizes()).equal(numbers)) << name;
    // The whole as a tensor of the files, in the dtype that it had.
    const at::Tensor shown = golden_weights().tensor(name + ".weight");
    EXPECT_EQ(shown.scalar_type(), name.starts_with("wide") ? at::kBFloat16 : at::kFloat) << name;
    EXPECT_TRUE(shown.equal(numbers.to(shown.scalar_type()))) << name;
  }
}

TEST(FourBitFiles, AreShownAsOneTensorEach) {
  const WeightFiles& files = golden_weights();
  EXPECT_EQ(files.names().size(), 3 + 2 * kFourBitCases.size());  // inputs; weights and their numbers
  const TensorInfo* info = files.find("adversarial_nf4.weight");
  ASSERT_NE(info, nullptr);
  EXPECT_EQ(info->dtype, Dtype::kF32);
  EXPECT_EQ(info->shape, (std::vector<int64_t>{9, 29}));
  EXPECT_FALSE(files.quantized("normal.input").has_value());
  files.release("adversarial_nf4.weight");
}

TEST(FourBitFiles, WhatCannotBeReadIsRefused) {
  const auto refusal = [](const std::string& state) {
    return message_of<DataError>([&] {
      const at::Tensor bytes = at::empty({static_cast<int64_t>(state.size())}, at::kByte);
      std::memcpy(bytes.mutable_data_ptr(), state.data(), state.size());
      read_four_bit_entry("up.weight", bytes, "folder");
    });
  };
  expect_contains(refusal(R"({"shape":[2,2],"dtype":"int8","blocksize":64})"), "bfloat16");
  expect_contains(refusal(R"({"shape":[2,2],"dtype":"float32","blocksize":48})"), "power of two");
  expect_contains(
      refusal(R"({"shape":[2,2],"dtype":"float32","blocksize":64,"nested_blocksize":128,"nested_offset":0.5})"), "256");
  expect_contains(refusal("no JSON"), "up.weight");
  EXPECT_EQ(four_bit_name("a.weight.quant_state.bitsandbytes__fp4"), "a.weight");
  EXPECT_EQ(four_bit_name("a.weight.absmax"), "");
  // Tensors of other sizes.
  const FourBitEntry entry{.name = "w", .shape = {2, 64}, .block = 64};
  const std::string message = message_of<DataError>(
      [&] { read_four_bit_tensor(entry, [](const std::string&) { return at::zeros({3}, at::kByte); }); });
  expect_contains(message, "w holds 3 bytes; 128 numbers in 4 bits need 64");
}

}  // namespace
}  // namespace megalith::hf
