// Numbers that are kept in fewer bits than they are computed in.
#include "megalith/ops/update/stored_values.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "tests/ops/compare.h"
#include "tests/support/expect.h"

namespace megalith::ops {
namespace {

using at::Tensor;
using testing::random_tensor;
using testing::ThreadCount;

constexpr int64_t kNumbers = 64 * 1000;

StoredValues stored(at::ScalarType format, int64_t n = kNumbers) {
  StoredValues result{.values = at::zeros({n}, format)};
  if (has_scales(format)) result.scales = at::zeros({n / kScaleBlock});
  return result;
}

Tensor read(const StoredValues& from) {
  const Tensor numbers = at::empty({from.numel()});
  read_values(from, numbers);
  return numbers;
}

// Blocks of very different size, as gradients of layers are.
Tensor numbers() {
  const Tensor sizes = at::exp2(random_tensor({kNumbers / 64, 1}) * 20);
  return (random_tensor({kNumbers / 64, 64}) * sizes).to(at::kFloat).view(-1);
}

TEST(StoredValues, AreCloseToTheNumbers) {
  const ThreadCount threads(2);
  const Tensor x = numbers(), blocks = x.view({-1, 64}), amax = blocks.abs().amax(1, true);
  for (const auto& [format, relative, of_amax] : {std::tuple{at::kFloat, 0.0, 0.0},
                                                  {at::kBFloat16, 0x1p-8, 0.0},
                                                  {at::kHalf, 0x1p-11, 0x1p-38},
                                                  {at::kFloat8_e4m3fn, 0x1p-4, 0x1p-18}}) {
    const StoredValues s = stored(format);
    write_values(x, s);
    const Tensor error = (read(s) - x).abs().view({-1, 64});
    EXPECT_FALSE((error > relative * blocks.abs() + of_amax * amax).any().item<bool>()) << c10::toString(format);
  }
}

// A state that is read and written, as by a skipped step or through a checkpoint, is the same state.
TEST(StoredValues, WritingWhatWasReadChangesNothing) {
  for (const auto format : {at::kFloat, at::kBFloat16, at::kHalf, at::kFloat8_e4m3fn})
    for (const double size : {1.0, 1e-30, 1e10, 1e-40}) {
      const StoredValues s = stored(format), again = stored(format);
      write_values(numbers() * size, s);
      const Tensor first = read(s);
      write_values(first, again);
      EXPECT_TRUE(read(again).equal(first)) << c10::toString(format) << " " << size;
    }
}

// TransformerEngine's rule: the largest number of a block becomes 448.
TEST(StoredValues, ScalesAreThoseOfTransformerEngine) {
  const Tensor x = numbers(), amax = x.view({-1, 64}).abs().amax(1);
  StoredValues s = stored(at::kFloat8_e4m3fn);
  write_values(x, s);
  EXPECT_FALSE((s.scales / (amax / 448) - 1).abs().gt(0x1p-14).any().item<bool>());
  EXPECT_TRUE(s.values.to(at::kFloat).view({-1, 64}).abs().amax(1).eq(448).all().item<bool>());
  s = stored(at::kHalf);
  write_values(x, s);
  const Tensor largest = s.values.to(at::kFloat).view({-1, 64}).abs().amax(1);
  EXPECT_TRUE(largest.ge(0x1p14).logical_and(largest.le(0x1p15)).all().item<bool>());
}

// The scale follows a uniform decay that is smaller than half a unit of fp8: a second moment does not get stuck.
TEST(StoredValues, ScalesFollowASlowDecay) {
  const StoredValues s = stored(at::kFloat8_e4m3fn, 64);
  const Tensor start = random_tensor({64}).abs().to(at::kFloat);
  write_values(start, s);
  const Tensor before = read(s);
  for (int step = 0; step < 1000; ++step) write_values(read(s) * 0.999, s);
  const double decay = std::pow(0.999, 1000);
  EXPECT_FALSE((read(s) / (before * decay + 1e-9) - 1).abs().gt(0.02).logical_and(before.gt(0)).any().item<bool>());
}

TEST(StoredValues, HalvesLoseNothing) {
  const Tensor x = numbers();
  const StoredValues s{.values = at::zeros({kNumbers}, at::kShort), .high = at::zeros({kNumbers}, at::kBFloat16)};
  write_values(x, s);
  EXPECT_TRUE(read(s).equal(x));
  const Tensor ties = x.view(at::kInt).bitwise_and(0xffff).eq(0x8000);
  EXPECT_TRUE(s.high.eq(x.to(at::kBFloat16)).logical_or(ties).all().item<bool>());
  EXPECT_EQ(s.bytes(), 2 * kNumbers);
}

TEST(StoredValues, ZeroAndSlices) {
  for (const auto format : {at::kHalf, at::kFloat8_e4m3fn}) {
    const StoredValues s = stored(format, 256);
    EXPECT_TRUE(read(s).eq(0).all().item<bool>());
    const Tensor x = random_tensor({128}).to(at::kFloat);
    write_values(x, s.slice(64, 192));
    EXPECT_TRUE(read(s.slice(0, 64)).eq(0).all().item<bool>());
    EXPECT_TRUE(read(s).narrow(0, 64, 128).equal(read(s.slice(64, 192))));
    EXPECT_THROW(s.slice(10, 64), InternalError);
    write_values(at::zeros({256}), s);
    EXPECT_TRUE(read(s).eq(0).all().item<bool>());
    EXPECT_DOUBLE_EQ(static_cast<double>(s.bytes()), 256 * stored_bytes(format));
  }
}

}  // namespace
}  // namespace megalith::ops
