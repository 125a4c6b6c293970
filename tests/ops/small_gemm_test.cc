// The small products of attention on the CPU, fp32 and bf16, against their definition, with and without a band.
#include "megalith/ops/gemm/small_gemm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <vector>

#include "megalith/ops/gemm/amx_gemm.h"
#include "tests/ops/compare.h"

namespace megalith::ops {
namespace {

using at::Tensor;
using testing::expect_close;
using testing::random_tensor;

Tensor random_floats(at::IntArrayRef sizes, uint64_t seed) { return random_tensor(sizes, seed).to(at::kFloat); }

// Returns the product of row-major matrices, added to `c`.
SmallGemm product_of(const Tensor& a, const Tensor& b, Tensor& c) {
  return {.a = a.const_data_ptr<float>(),
          .a_row = a.stride(0),
          .a_column = a.stride(1),
          .b = b.const_data_ptr<float>(),
          .b_row = b.stride(0),
          .c = c.mutable_data_ptr<float>(),
          .c_row = c.stride(0),
          .m = a.size(0),
          .n = b.size(1),
          .k = a.size(1),
          .accumulate = true};
}

TEST(SmallGemm, AddsOrOverwrites) {
  for (const int64_t m : {1, 7, 33})
    for (const int64_t k : {1, 19, 64}) {
      const Tensor a = random_floats({m, k}, 1), b = random_floats({k, 48}, 2), before = random_floats({m, 48}, 3);
      for (const bool accumulate : {false, true}) {
        Tensor c = before.clone();
        SmallGemm gemm = product_of(a, b, c);
        gemm.accumulate = accumulate;
        small_gemm(gemm);
        expect_close(c, accumulate ? before + a.mm(b) : a.mm(b), 1e-5);
      }
    }
}

TEST(SmallGemm, TheLeftMatrixMayBeTransposed) {
  const Tensor a = random_floats({24, 9}, 1).t(), b = random_floats({24, 32}, 2);
  Tensor c = at::zeros({9, 32});
  small_gemm(product_of(a, b, c));
  expect_close(c, a.mm(b), 1e-5);
}

TEST(SmallGemm, ACausalBandGivesTheColumnsBeforeTheRow) {
  const int64_t m = 40, n = 48;
  const Tensor a = random_floats({m, 16}, 1), b = random_floats({16, n}, 2);
  Tensor c = at::zeros({m, n});
  SmallGemm gemm = product_of(a, b, c);
  gemm.columns = {.hi = 1};  // j <= i
  small_gemm(gemm);
  expect_close(c.tril(), a.mm(b).tril(), 1e-5);
}

TEST(SmallGemm, ColumnsArePaddedToTheWidthOfARegister) {
  EXPECT_EQ(gemm_padded(1), kGemmColumns);
  EXPECT_EQ(gemm_padded(kGemmColumns), kGemmColumns);
  EXPECT_EQ(gemm_padded(kGemmColumns + 1), 2 * kGemmColumns);
}

TEST(AmxGemm, MatchesAProductOfRoundedNumbers) {
  if (!amx_available()) GTEST_SKIP() << "this processor has no AMX";
  const int64_t m = kAmxTile, n = 2 * kAmxTile, k = amx_padded(50);
  const Tensor a = random_floats({m, k}, 1).to(at::kBFloat16), b = random_floats({k, n}, 2).to(at::kBFloat16);
  const Tensor pairs = b.view({k / 2, 2, n}).transpose(1, 2).contiguous();  // two rows of b side by side
  Tensor c = random_floats({m, n}, 3);
  const Tensor expected = c + a.to(at::kFloat).mm(b.to(at::kFloat));
  const AmxSession session;
  amx_gemm({.a = a.const_data_ptr<c10::BFloat16>(),
            .a_row = k,
            .b = reinterpret_cast<const Bf16Pair*>(pairs.const_data_ptr<c10::BFloat16>()),
            .b_row = n,
            .c = c.mutable_data_ptr<float>(),
            .c_row = n,
            .m = m,
            .n = n,
            .k = k,
            .accumulate = true});
  expect_close(c, expected, 1e-5);
}

}  // namespace
}  // namespace megalith::ops
