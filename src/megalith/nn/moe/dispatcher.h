// How tokens reach the ranks that hold their experts, and how the results come back.
//
//   kind       there                                               back
//   alltoall   copies of tokens, by destination: all-to-all        all-to-all, weighted sum of the copies
//   allgather  all tokens of the group: all-gather                 weighted sums of what is here: reduce-scatter
//
// The group is that of the ranks which hold one copy of all experts together (ep · etp ranks). Where experts are split
// (etp > 1), a token goes to every rank that has a part of its expert, and the sum at the end adds the parts.
//
// Legend: t tokens of this rank (may differ by rank, may be 0), k experts a token, r rows for this rank's experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/nn/moe/routing.h"
#include "megalith/ops/gemm/grouped_gemm.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::nn {

// The ranks that hold the experts together.
struct ExpertRanks {
  comm::Group group;
  std::vector<int> ep_rank;  // of each member: it holds experts [ep_rank · n, (ep_rank + 1) · n)
  int ep = 1, etp = 1;
  static ExpertRanks of(const parallel::ParallelContext& context);
};

// What experts can do for themselves where the dispatcher has nothing to send.
struct LocalRows {
  std::function<at::Tensor()> again;  // makes the rows again, so that nobody has to keep them; empty: keep them
  at::Tensor weights;                 // fp32 [r]: of each row, for the experts to apply; undefined: combine() does
};

// One micro-batch's way there and back. Made by a dispatcher; all ranks of the group use theirs in the same order.
class DispatchPlan {
 public:
  virtual ~DispatchPlan() = default;
  // x [t, h] -> rows [r, h] for this rank's experts, expert by expert. `meanwhile`, where given, is called while the
  // tokens travel.
  virtual at::Tensor dispatch(const at::Tensor& x, const std::function<void()>& meanwhile) const = 0;
  const ops::GroupCounts& counts() const { return counts_; }
  // x as given to dispatch(), and the weights [t, k] of its tokens' choices.
  virtual LocalRows local(const at::Tensor& /*x*/, const at::Tensor& /*weights*/) const { return {}; }
  // What the experts made of the rows -> residual + the sums of each token's results times its weights [t, k];
  // undefined: the experts have applied them (LocalRows).
  virtual at::Tensor combine(const at::Tensor& rows, const at::Tensor& weights, const at::Tensor& residual) const = 0;

 protected:
  ops::GroupCounts counts_;
};

// Collective over the ranks: they tell each other how many tokens come. `device`: of the tokens.
std::unique_ptr<DispatchPlan> plan_all_to_all(const ExpertLists& lists, const ExpertRanks& ranks,
                                              at::Device device = at::kCPU);
std::unique_ptr<DispatchPlan> plan_all_gather(const ExpertLists& lists, const ExpertRanks& ranks,
                                              at::Device device = at::kCPU);

}  // namespace megalith::nn
