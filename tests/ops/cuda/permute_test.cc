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
          const RowMap here = map.to(in[0].device());
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

}  // namespace
}  // namespace megalith::ops
