// Products of blocks of rows against the product of the whole.
#include "megalith/ops/gemm/block_gemm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "tests/ops/compare.h"
#include "tests/support/expect.h"

namespace megalith::ops {
namespace {

// Rows 2 … 4 of each of three blocks of 7 rows, from and to tensors in which blocks lie apart or one after the other.
TEST(BlockGemm, WritesBlocksWhereTheyLie) {
  const at::Tensor x = testing::random_tensor({3 * 7, 5}), weight = testing::random_tensor({6, 5});
  const auto rows = [](const at::Tensor& all) { return all.view({3, 7, -1}).narrow(1, 2, 3); };
  const at::Tensor expected = rows(x.mm(weight.t()));
  for (const bool reads_apart : {false, true})
    for (const bool writes_apart : {false, true}) {
      const at::Tensor in = reads_apart ? rows(x) : rows(x).contiguous();
      const at::Tensor all = at::full({3 * 7, 6}, 9, x.options()), compact = at::full({3, 3, 6}, 9, x.options());
      const at::Tensor out = writes_apart ? rows(all) : compact;
      block_gemm_out(out, in, weight.t());
      testing::expect_close(out, expected, 1e-6);
      EXPECT_EQ(all.eq(9).sum().item<int64_t>(), writes_apart ? 3 * 4 * 6 : all.numel()) << "rows of others";
    }
}

TEST(BlockGemm, RefusesSizesThatDoNotFit) {
  const at::Tensor out = at::empty({2, 3, 4}), x = at::empty({2, 3, 5}), w = at::empty({6, 4});
  testing::expect_error<InternalError>([&] { block_gemm_out(out, x, w); }, {"[2, 3, 5]", "[6, 4]", "[2, 3, 4]"});
  EXPECT_NO_THROW(block_gemm_out(out.narrow(1, 0, 0), at::empty({2, 0, 6}), w));
}

}  // namespace
}  // namespace megalith::ops
