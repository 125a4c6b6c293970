// All-gather dispatch: every rank receives all tokens of the group, computes those that chose its experts, and
// reduce-scatters the weighted sums. Moves all tokens, whether they are needed or not; pays off if most tokens choose
// experts on most ranks. Collectives need equal sizes, so that each rank pads its tokens to the largest count.
//
//   dispatch   all-gather of the choices [longest, k], from which each rank sorts the rows of its experts;
//              all-gather of x [longest, h]              backward: reduce-scatter of the gradients
//   combine    all-gather of the weights [longest, k], weighted sums, reduce-scatter [members · longest, h]
#include <ATen/ATen.h>

#include <numeric>

#include "megalith/nn/moe/dispatcher.h"
#include "megalith/nn/tensor_parallel/mappings.h"

namespace megalith::nn {

namespace {

// Works on the tokens of all ranks, padded to the longest: [t, …] -> [members · longest, …].
class AllGatherPlan : public DispatchPlan {
 public:
  AllGatherPlan(const ExpertLists& lists, const ExpertRanks& ranks, std::shared_ptr<const MemberLoads> loads)
      : ranks_(ranks),
        loads_(std::move(loads)),
        per_rank_(lists.experts() / ranks.ep),
        tokens_(lists.tokens()),
        choices_(lists.chosen.masked_fill(lists.map.row.lt(0), -1)) {}

  at::Tensor dispatch(const at::Tensor& x, const std::function<void()>& meanwhile) override {
    if (meanwhile) meanwhile();  // before the wait: the device has something to do
    const at::Tensor& loads = loads_->on_host();
    longest_ = loads.select(1, loads.size(1) - 1).max().const_data_ptr<int64_t>()[0];
    take(all_gather_rows(filled_up(choices_, -1), ranks_.group, "choices of experts"));
    return ops::copy_rows(gather_tokens(filled_up(x, 0), ranks_.group), here_);
  }

  at::Tensor combine(const at::Tensor& rows, const at::Tensor& weights,
                     const std::function<at::Tensor()>& residual) const override {
    const at::Tensor all = ops::sum_rows(rows, gather_tokens(filled_up(weights, 0), ranks_.group), here_);
    const at::Tensor sum = reduce_scatter_tokens(all, ranks_.group).narrow(0, 0, tokens_), base = residual();
    return base.defined() ? base + sum : sum;
  }

 private:
  // Pads this rank's tokens up to the longest rank.
  at::Tensor filled_up(const at::Tensor& x, int64_t value) const {
    return tokens_ == longest_ ? x : at::constant_pad_nd(x, {0, 0, 0, longest_ - tokens_}, value);
  }

  // Makes the rows for this rank's experts from the choices of all tokens. Those of other experts, and padding (-1),
  // are sorted as if they had chosen a last expert, whose rows are then cut off.
  void take(const at::Tensor& all) {
    const int64_t first = ranks_.own_first(per_rank_);
    const at::Tensor own = all - first, others = own.lt(0).logical_or(own.ge(per_rank_));
    const ops::SortedChoices sorted = ops::sort_choices(own.masked_fill(others, per_rank_), per_rank_ + 1);
    std::vector<int64_t> counts(static_cast<size_t>(per_rank_), 0);
    for (int64_t member = 0; member < ranks_.group.size(); ++member)
      for (int64_t i = 0; i < per_rank_; ++i) counts[static_cast<size_t>(i)] += loads_->rows(member, first + i, 1);
    const int64_t rows = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    here_ = {sorted.map.token.narrow(0, 0, rows).clone(), sorted.map.row.masked_fill(others, -1)};
    counts_ = ops::GroupCounts::on_both(std::move(counts), sorted.first.narrow(0, 1, per_rank_).to(at::kInt));
  }

  const ExpertRanks& ranks_;
  const std::shared_ptr<const MemberLoads> loads_;
  const int64_t per_rank_;  // experts
  const int64_t tokens_;
  const at::Tensor choices_;  // int64 [t, k], -1 if dropped
  // Set by dispatch().
  int64_t longest_ = 0;
  ops::RowMap here_;
};

}  // namespace

std::unique_ptr<DispatchPlan> plan_all_gather(const ExpertLists& lists, const ExpertRanks& ranks,
                                              std::shared_ptr<const MemberLoads> loads) {
  return std::make_unique<AllGatherPlan>(lists, ranks, std::move(loads));
}

}  // namespace megalith::nn
