// Rows of tokens in the order of their experts and back, and the sort that gives that order.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "megalith/ops/moe/permute.h"
#include "tests/ops/cuda/kernel_case.h"

namespace megalith::ops {
namespace {

using at::Tensor;

TEST_P(CudaKernel, CopiedAndSummedRowsMatchTheCpu) {
  for (const int64_t h : {5, 64, 2048}) {
    const int64_t t = 19, k = 3;
    const Tensor order = at::randperm(t * k, generator_, at::kLong);
    Tensor row = at::empty_like(order);
    row.scatter_(0, order, at::arange(t * k, at::kLong));
    const RowMap map{order.div(k, "floor"), row.view({t, k}), true};
    compare(
        {random({t, h}), random({t * k, h}), at::rand({t, k}, generator_, at::kFloat), random({t, h})},
        [&](const Tensors& in) {
          const at::Device device = in[0].device();
          const RowMap here{map.token.to(device), map.row.to(device), map.every_row_used};
          return Tensors{copy_rows(in[0], here), sum_rows(in[1], in[2], here, in[3]), sum_rows(in[1], {}, here)};
        },
        fmt::format("rows of {}", h));
  }
}

TEST_P(CudaKernel, ChoicesAreSortedAsOnTheCpu) {
  for (const int64_t t : {1, 100, 3000})
    for (const int64_t experts : {3, 64, 300, 2000}) {
      const Tensor chosen = at::randint(experts, {t, 3}, generator_, at::kLong);
      const SortedChoices cpu = sort_choices(chosen, experts), cuda = sort_choices(chosen.to(at::kCUDA), experts);
      const std::string what = fmt::format("{} tokens, {} experts", t, experts);
      EXPECT_TRUE(cuda.map.token.cpu().equal(cpu.map.token)) << what;
      EXPECT_TRUE(cuda.map.row.cpu().equal(cpu.map.row)) << what;
      EXPECT_TRUE(cuda.first.cpu().equal(cpu.first)) << what;
    }
}

TEST_P(CudaKernel, BlocksAreLaidOutAsOnTheCpu) {
  const Tensor sizes = at::randint(40, {24}, generator_, at::kLong), order = at::randperm(24, generator_, at::kLong);
  const int64_t rows = sizes.sum().item<int64_t>();
  const Tensor cpu = rows_by_block(sizes, order, rows);
  const RowMap cuda = permutation_map(rows_by_block(sizes.to(at::kCUDA), order.to(at::kCUDA), rows));
  EXPECT_TRUE(cuda.token.cpu().equal(cpu));
  EXPECT_TRUE(cuda.row.cpu().equal(permutation_map(cpu).row));
}

}  // namespace
}  // namespace megalith::ops
