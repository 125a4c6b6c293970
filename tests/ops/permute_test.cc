// Copies and weighted sums of rows against ATen's own operations.
#include "megalith/ops/moe/permute.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "megalith/base/error.h"
#include "megalith/ops/gemm/grouped_gemm.h"
#include "tests/support/close.h"
#include "tests/support/expect.h"

namespace megalith::ops {
namespace {

using testing::expect_close;

// 5 tokens with up to 2 copies in 8 rows; rows 3 and 6 are fillers.
RowMap some_map() {
  return {at::tensor({4, 0, 2, 1, 0, 3, 3, 4}, at::kLong),
          at::tensor({1, 4, -1, -1, 2, -1, -1, 5, 0, 7}, at::kLong).view({5, 2}), false};
}

at::Tensor expected_sum(const at::Tensor& rows, const at::Tensor& weights, const RowMap& map) {
  at::Tensor y = at::zeros({map.tokens(), rows.size(1)}, rows.options());
  std::vector<at::Tensor> sums;
  for (int64_t i = 0; i < map.tokens(); ++i) {
    at::Tensor sum = at::zeros({rows.size(1)}, rows.options());
    for (int64_t j = 0; j < map.row.size(1); ++j) {
      const auto row = map.row[i][j].item<int64_t>();
      if (row >= 0) sum = sum + (weights.defined() ? rows[row] * weights[i][j] : rows[row]);
    }
    sums.push_back(sum);
  }
  return at::stack(sums);
}

TEST(Permute, CopiesAndTheirGradients) {
  const RowMap map = some_map();
  for (const int64_t h : {1, 7, 300}) {
    const at::Tensor x = at::randn({5, h}).requires_grad_(), dy = at::randn({8, h});
    const at::Tensor y = copy_rows(x, map);
    EXPECT_TRUE(y.detach().equal(x.detach().index_select(0, map.token)));
    y.backward(dy);
    expect_close(x.grad(), expected_sum(dy, {}, map), "gradient");
  }
}

TEST(Permute, SumsAndTheirGradients) {
  const RowMap map = some_map();
  for (const int64_t h : {1, 7, 300})
    for (const bool weighted : {false, true}) {
      const at::Tensor rows = at::randn({8, h}, at::kDouble).requires_grad_(), dy = at::randn({5, h}, at::kDouble);
      const at::Tensor weights = weighted ? at::randn({5, 2}, at::kDouble).requires_grad_() : at::Tensor();
      const at::Tensor residual = at::randn({5, h}, at::kDouble).requires_grad_();
      const at::Tensor y = sum_rows(rows, weights, map, residual);
      const at::Tensor rows2 = rows.detach().clone().requires_grad_();
      const at::Tensor weights2 = weighted ? weights.detach().clone().requires_grad_() : at::Tensor();
      const at::Tensor expected = expected_sum(rows2, weights2, map) + residual.detach();
      expect_close(y, expected, "sum");
      y.backward(dy);
      expected.backward(dy);
      expect_close(rows.grad(), rows2.grad(), "gradient of the rows");
      expect_close(residual.grad(), dy, "gradient of the residual");
      if (weighted) expect_close(weights.grad(), weights2.grad(), "gradient of the weights");
    }
}

TEST(Permute, Bf16SumsInFp32) {
  const RowMap map = permutation_map(at::tensor({2, 0, 1}, at::kLong));
  const at::Tensor x = at::randn({3, 40}).to(at::kBFloat16);
  const at::Tensor there = copy_rows(x, map);
  EXPECT_TRUE(sum_rows(there, at::ones({3, 1}), map).equal(x));
}

TEST(Permute, WrongShapesAreRefused) {
  const RowMap map = some_map();
  testing::expect_error<InternalError>([&] { copy_rows(at::zeros({4, 2}), map); }, {"copy_rows", "[4, 2]"});
  testing::expect_error<InternalError>([&] { sum_rows(at::zeros({8, 2}), at::zeros({5, 3}), map); }, {"weights"});
}

TEST(GroupedGemm, EqualsALoopOverGroups) {
  const auto on_device = [](const std::vector<int>& ends) {
    return GroupCounts::on_device(at::tensor(ends, at::kInt));
  };
  for (const GroupCounts& counts :
       {GroupCounts{3, 0, 5, 1}, GroupCounts{0, 0, 0, 0}, GroupCounts(std::vector<int64_t>(16, 7)),
        on_device({3, 3, 8, 9}), on_device({0})}) {
    const int64_t groups = counts.groups();
    int64_t rows = 0;
    for (const int64_t count : counts.on_host()) rows += count;
    const at::Tensor x = at::randn({rows, 6}), w = at::randn({groups, 4, 6}), dy = at::randn({rows, 4});
    const at::Tensor y = grouped_mm_transposed(x, w, counts), dx = grouped_mm(dy, w, counts);
    const at::Tensor fresh = at::full_like(w, NAN), added = at::ones_like(w);
    grouped_weight_grad(fresh, dy, x, counts, 0);
    grouped_weight_grad(added, dy, x, counts, 1);
    int64_t first = 0;
    for (int64_t n = 0; n < groups; ++n) {
      const int64_t count = counts.on_host()[static_cast<size_t>(n)];
      const at::Tensor xn = x.narrow(0, first, count), dyn = dy.narrow(0, first, count);
      expect_close(y.narrow(0, first, count), xn.mm(w[n].t()), "product");
      expect_close(dx.narrow(0, first, count), dyn.mm(w[n]), "product with the transposed");
      expect_close(fresh[n], dyn.t().mm(xn), "weight gradient");
      expect_close(added[n], dyn.t().mm(xn) + 1, "added weight gradient");
      first += count;
    }
  }
  testing::expect_error<InternalError>(
      [] {
        grouped_mm(at::zeros({3, 4}), at::zeros({2, 4, 6}), {1, 1});
      },
      {"the groups have 2 rows in all, but the tensor has 3"});
  testing::expect_error<InternalError>(
      [&] {
        grouped_mm(at::zeros({3, 4}), at::zeros({2, 4, 6}), on_device({1, 2}));
      },
      {"the groups have 2 rows in all, but the tensor has 3"});
}

TEST(GroupedGemm, EmptyGroupsHaveNoProducts) {
  const GroupCounts counts{0, 3, 0, 2};
  for (const double beta : {0.0, 1.0, 0.5}) {
    const at::Tensor products = at::randn({4, 3, 5}).to(at::kBFloat16), before = at::randn({4, 3, 5});
    for (const int64_t empty : {0, 2}) products[empty].fill_(NAN);
    const at::Tensor expected = before * beta + products.to(at::kFloat).nan_to_num(0);
    const at::Tensor dw = beta == 0 ? at::full_like(before, NAN) : before.clone();
    add_group_products(dw, products, counts, beta);
    EXPECT_TRUE(dw.equal(expected)) << "beta " << beta;
  }
}

TEST(GroupedGemm, CountsAreTheSameOnBothSides) {
  const GroupCounts host{3, 0, 5, 1}, device = GroupCounts::on_device(at::tensor({3, 3, 8, 9}, at::kInt));
  EXPECT_EQ(host.on_host(), device.on_host());
  EXPECT_TRUE(host.ends(at::kCPU).equal(device.ends(at::kCPU)));
  EXPECT_EQ(GroupCounts().groups(), 0);
  const GroupCounts copy = host;  // knows what its original has learnt
  EXPECT_EQ(copy.ends(at::kCPU).data_ptr(), host.ends(at::kCPU).data_ptr());
  testing::expect_error<InternalError>([] { GroupCounts::on_device(at::zeros({2}, at::kLong)); },
                                       {"int32 [g]", "Long"});
}

TEST(SortedChoices, StandByExpertInTheOrderOfTheTokens) {
  const SortedChoices sorted = sort_choices(at::tensor({2, 0, 0, 3, 2, 0}, at::kLong).view({3, 2}), 5);
  EXPECT_TRUE(sorted.first.equal(at::tensor({0, 3, 3, 5, 6, 6}, at::kLong)));
  EXPECT_TRUE(sorted.map.token.equal(at::tensor({0, 1, 2, 0, 2, 1}, at::kLong)));
  EXPECT_TRUE(sorted.map.row.equal(at::tensor({3, 0, 1, 5, 4, 2}, at::kLong).view({3, 2})));
  testing::expect_error<InternalError>([] { sort_choices(at::zeros({3}, at::kLong), 5); }, {"[3]"});
}

TEST(RowsByBlock, LayOutBlocksInAnyOrder) {
  const at::Tensor sizes = at::tensor({2, 0, 1, 3}, at::kLong);
  const auto rows = [&](const std::vector<int64_t>& order, int64_t count) {
    return rows_by_block(sizes, at::tensor(order, at::kLong), count);
  };
  EXPECT_TRUE(rows({3, 1, 0, 2}, 6).equal(at::tensor({3, 4, 5, 0, 1, 2}, at::kLong)));
  EXPECT_TRUE(rows({0, 1, 2, 3}, 6).equal(at::arange(6)));
  EXPECT_TRUE(rows({2, 0, 1, 2}, 4).equal(at::tensor({2, 0, 1, 2}, at::kLong)));  // one block twice, one not at all
  EXPECT_EQ(rows({1}, 0).numel(), 0);
}

}  // namespace
}  // namespace megalith::ops
