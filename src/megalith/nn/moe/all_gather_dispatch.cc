// All-gather dispatch: every rank receives all tokens of the group, computes those that chose its experts, and
// reduce-scatters the weighted sums. Moves all tokens, whether they are needed or not; pays off if most tokens choose
// experts on most ranks. Collectives need equal sizes, so that each rank pads its tokens to the largest count.
//
//   plan       all-gather of the lengths, then of the choices [longest, k]; each rank lists the rows of its experts
//   dispatch   all-gather of x [longest, h]              backward: reduce-scatter of the gradients
//   combine    all-gather of the weights [longest, k], weighted sums, reduce-scatter [members · longest, h]
#include <ATen/ATen.h>

#include <algorithm>

#include "megalith/nn/moe/dispatcher.h"
#include "megalith/nn/tensor_parallel/mappings.h"

namespace megalith::nn {

namespace {

// Returns int64 [t, k]: the expert of each choice, -1 if it was dropped.
at::Tensor chosen(const ExpertLists& lists) {
  at::Tensor experts = at::full({lists.tokens, lists.topk}, -1, at::kLong);
  auto* data = experts.mutable_data_ptr<int64_t>();
  for (size_t expert = 0; expert + 1 < lists.first.size(); ++expert)
    for (int64_t i = lists.first[expert]; i < lists.first[expert + 1]; ++i)
      if (lists.place[i] >= 0) data[lists.token[i] * lists.topk + lists.place[i]] = static_cast<int64_t>(expert);
  return experts;
}

// Works on the tokens of all ranks, padded to the longest: [t, …] -> [members · longest, …].
class AllGatherPlan : public DispatchPlan {
 public:
  AllGatherPlan(const ExpertLists& lists, const ExpertRanks& ranks, at::Device device)
      : group_(ranks.group), tokens_(lists.tokens) {
    const at::Tensor length = at::full({1}, lists.tokens, at::TensorOptions(at::kLong).device(device));
    longest_ = all_gather_rows(length, group_, "tokens of each rank").max().item<int64_t>();
    at::Tensor choices = chosen(lists).to(device);
    if (tokens_ < longest_) choices = at::constant_pad_nd(choices, {0, 0, 0, longest_ - tokens_}, -1);
    const at::Tensor all = all_gather_rows(choices, group_, "choices of experts").cpu();
    const int64_t count = lists.experts() / ranks.ep;
    take(all, ranks.ep_rank[static_cast<size_t>(group_.rank())] * count, count);
    here_ = here_.to(device);
  }

  at::Tensor dispatch(const at::Tensor& x, const std::function<void()>& meanwhile) const override {
    const at::Tensor rows = ops::copy_rows(gather_tokens(filled_up(x), group_), here_);
    if (meanwhile) meanwhile();
    return rows;
  }

  at::Tensor combine(const at::Tensor& rows, const at::Tensor& weights, const at::Tensor& residual) const override {
    const at::Tensor all = ops::sum_rows(rows, gather_tokens(filled_up(weights), group_), here_);
    const at::Tensor sum = reduce_scatter_tokens(all, group_).narrow(0, 0, tokens_);
    return residual.defined() ? residual + sum : sum;
  }

 private:
  // Pads this rank's tokens with zeros up to the longest rank.
  at::Tensor filled_up(const at::Tensor& x) const {
    return tokens_ == longest_ ? x : at::constant_pad_nd(x, {0, 0, 0, longest_ - tokens_}, 0);
  }

  // Builds the rows for experts [first, first + count) from the choices of all tokens; padding (-1) matches none.
  void take(const at::Tensor& all, int64_t first, int64_t count) {
    const auto* expert = all.const_data_ptr<int64_t>();
    const int64_t topk = all.size(1);
    ExpertLists lists{.first = {0}, .token = {}, .place = {}, .tokens = all.size(0), .topk = topk};
    std::vector<int64_t> series, rows;
    for (int64_t e = 0; e < count; ++e) {
      for (int64_t i = 0; i < all.numel(); ++i)
        if (expert[i] == first + e) {
          lists.token.push_back(i / topk);
          lists.place.push_back(i % topk);
        }
      lists.first.push_back(static_cast<int64_t>(lists.token.size()));
      series.push_back(e);
      rows.push_back(lists.count(e));
    }
    counts_ = std::move(rows);
    here_ = rows_of(lists, series, 1);
  }

  comm::Group group_;
  int64_t tokens_, longest_ = 0;
  ops::RowMap here_;
};

}  // namespace

std::unique_ptr<DispatchPlan> plan_all_gather(const ExpertLists& lists, const ExpertRanks& ranks, at::Device device) {
  if (lists.on_device) return plan_all_to_all(lists, ranks, device);
  return std::make_unique<AllGatherPlan>(lists, ranks, device);
}

}  // namespace megalith::nn
