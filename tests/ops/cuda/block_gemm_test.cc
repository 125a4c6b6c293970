// Products of blocks of rows on a GPU against the CPU's, in the ways in which sliced collectives call them.
#include "megalith/ops/gemm/block_gemm.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/ops/cuda/kernel_case.h"

namespace megalith::ops {
namespace {

TEST_P(CudaKernel, BlocksOfRowsAreMultipliedWhereTheyLie) {
  const auto plans = make_gemm_plans();
  const GemmKernels tuned{.plans = plans.get()};
  const int64_t ranks = 4, shard = 512, rows = 192, in = 256, out = 384;
  const at::Tensor x = random({ranks * shard, in}), weight = random({out, in});
  const at::Tensor y = x.to(at::kFloat).mm(weight.to(at::kFloat).t()).to(GetParam());
  const at::Tensor cuda_x = x.to(at::kCUDA), cuda_weight = weight.to(at::kCUDA);
  const auto slice = [&](const at::Tensor& all) { return all.view({ranks, shard, -1}).narrow(1, 128, rows); };
  // Gathered rows into the order of tokens.
  const at::Tensor whole = at::full({ranks * shard, out}, 9, cuda_x.options());
  block_gemm_out(slice(whole), slice(cuda_x).contiguous(), cuda_weight.t(), tuned);
  expect_same(slice(whole).contiguous(), slice(y).contiguous(), "gathered rows");
  EXPECT_EQ(whole.view({ranks, shard, out}).narrow(1, 0, 128).ne(9).sum().item<int64_t>(), 0) << "rows of others";
  // Tokens into the rows that are scattered.
  const at::Tensor compact = at::empty({ranks, rows, out}, cuda_x.options());
  block_gemm_out(compact, slice(cuda_x), cuda_weight.t(), tuned);
  expect_same(compact, slice(y).contiguous(), "scattered rows");
}

// Large enough for a plan (2^33 multiplications), twice: the first call measures the kernels that cuBLASLt offers.
TEST_P(CudaKernel, LargeBlocksOfRowsHaveAPlan) {
  const auto plans = make_gemm_plans();
  const GemmKernels tuned{.plans = plans.get()};
  const int64_t ranks = 8, shard = 1024, rows = 512, in = 1024, out = 2048;
  const at::Tensor x = random({ranks * shard, in}).to(at::kCUDA), weight = random({out, in}).to(at::kCUDA);
  const at::Tensor y = x.to(at::kFloat).mm(weight.to(at::kFloat).t()).to(GetParam());
  const auto slice = [&](const at::Tensor& all) { return all.view({ranks, shard, -1}).narrow(1, 128, rows); };
  const at::Tensor whole = at::full({ranks * shard, out}, 9, x.options());
  const at::Tensor compact = at::empty({ranks, rows, out}, x.options());
  for (int call = 0; call < 2; ++call) {
    block_gemm_out(slice(whole), slice(x).contiguous(), weight.t(), tuned);
    expect_same(slice(whole).contiguous(), slice(y).contiguous().cpu(), "gathered rows");
    block_gemm_out(compact, slice(x), weight.t(), tuned);
    expect_same(compact, slice(y).contiguous().cpu(), "scattered rows");
  }
  EXPECT_EQ(whole.view({ranks, shard, out}).narrow(1, 0, 128).ne(9).sum().item<int64_t>(), 0) << "rows of others";
  EXPECT_EQ(whole.view({ranks, shard, out}).narrow(1, 640, 384).ne(9).sum().item<int64_t>(), 0) << "rows of others";
  if (GetParam() == at::kFloat) return;  // plans are for 16 bits
  EXPECT_TRUE(plans->run(compact, slice(x), weight.t(), {}, 0, 1, KernelChoice::kFixed)) << "cuBLASLt took it";
}

}  // namespace
}  // namespace megalith::ops
