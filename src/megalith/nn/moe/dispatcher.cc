// Shared by both dispatchers: who holds the experts, and the one exchange of counts that the host reads.
#include "megalith/nn/moe/dispatcher.h"

#include <ATen/ATen.h>

#include <numeric>

#include "megalith/nn/tensor_parallel/mappings.h"

namespace megalith::nn {

namespace {

// Returns int64 [members, E + 1].
at::Tensor gather_rows_and_tokens(const at::Tensor& rows, int64_t tokens, const comm::Group& group) {
  const at::Tensor own = at::cat({rows, at::full({1}, tokens, rows.options())}).unsqueeze(0);
  return all_gather_rows(own, group, "tokens of each expert");
}

}  // namespace

MemberLoads::MemberLoads(const at::Tensor& rows, int64_t tokens, const comm::Group& group)
    : gathered_(gather_rows_and_tokens(rows, tokens, group)), host_(gathered_) {}

const at::Tensor& MemberLoads::on_host() const {
  if (!read_.defined()) read_ = host_.value();
  return read_;
}

int64_t MemberLoads::rows(int64_t member, int64_t first, int64_t count) const {
  const at::Tensor& all = on_host();
  const int64_t* begin = all.const_data_ptr<int64_t>() + member * all.size(1) + first;
  return std::accumulate(begin, begin + count, int64_t{0});
}

ExpertRanks ExpertRanks::of(const parallel::ParallelContext& context) {
  ExpertRanks ranks{.group = context.group(layout::GroupKind::kTpEp), .ep_rank = {}};
  ranks.ep = context.grid().shape().ep;
  ranks.etp = context.grid().etp();
  ranks.same_tokens = true;
  for (const int rank : ranks.group.ranks()) {
    ranks.ep_rank.push_back(context.grid().place(rank).ep_rank);
    ranks.same_tokens = ranks.same_tokens && context.grid().place(rank).dp_rank == context.place().dp_rank;
  }
  return ranks;
}

bool knows_sizes(const ExpertLists& lists, const ExpertRanks& ranks, MoeOptions::Dispatcher dispatcher) {
  if (ranks.group.size() == 1) return true;
  return dispatcher == MoeOptions::Dispatcher::kAllToAll && lists.rows_per_expert && ranks.same_tokens;
}

// All-gather dispatch sends no padding: it needs the loads without.
std::shared_ptr<const MemberLoads> gather_loads(const ExpertLists& lists, const ExpertRanks& ranks,
                                                MoeOptions::Dispatcher dispatcher) {
  const bool gathers = dispatcher == MoeOptions::Dispatcher::kAllGather;
  return std::make_shared<MemberLoads>(gathers ? lists.load : lists.first.diff(), lists.tokens(), ranks.group);
}

std::unique_ptr<DispatchPlan> plan_dispatch(const ExpertLists& lists, const ExpertRanks& ranks,
                                            MoeOptions::Dispatcher dispatcher,
                                            std::shared_ptr<const MemberLoads> loads) {
  // On one rank there is nothing to gather.
  if (dispatcher == MoeOptions::Dispatcher::kAllToAll || ranks.group.size() == 1)
    return plan_all_to_all(lists, ranks, std::move(loads));
  return plan_all_gather(lists, ranks, std::move(loads));
}

}  // namespace megalith::nn
