// Token dispatch: how tokens reach the ranks that hold their experts, and how the results return.
//
//   kind       dispatch                                            combine
//   alltoall   copies of tokens, by destination: all-to-all        all-to-all, weighted sum of the copies
//   allgather  all tokens of the group: all-gather                 weighted sums over local experts: reduce-scatter
//
// The group consists of the ranks that together hold one copy of all experts (ep · etp ranks). If experts are split
// (etp > 1), a token goes to every rank that has a part of its expert, and the final sum adds the parts.
//
// Legend: t tokens of this rank (may differ between ranks, may be 0), k experts per token, r rows for this rank's
// experts.
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

// The ranks that together hold all experts.
struct ExpertRanks {
  comm::Group group;
  std::vector<int> ep_rank;  // per member: it holds experts [ep_rank · n, (ep_rank + 1) · n)
  int ep = 1, etp = 1;
  static ExpertRanks of(const parallel::ParallelContext& context);
};

// Work that the experts can take over if all rows stay on this rank.
struct LocalRows {
  std::function<at::Tensor()> recompute;  // recomputes the rows, so that they need not be kept; empty if they must be
  at::Tensor weights;  // fp32 [r]: weight of each row, applied by the experts; undefined: by combine()
};

// Dispatch and combine of one micro-batch. All ranks of the group use their plans in the same order.
class DispatchPlan {
 public:
  virtual ~DispatchPlan() = default;
  // x [t, h] -> rows [r, h] for this rank's experts, grouped by expert. Calls `meanwhile`, if given, while the tokens
  // are in flight.
  virtual at::Tensor dispatch(const at::Tensor& x, const std::function<void()>& meanwhile) const = 0;
  const ops::GroupCounts& counts() const { return counts_; }
  // Returns what the experts can do themselves. Takes x as given to dispatch(), and the weights [t, k] of its tokens'
  // choices.
  virtual LocalRows local(const at::Tensor& /*x*/, const at::Tensor& /*weights*/) const { return {}; }
  // Outputs of the experts [r, h] -> residual + the sum of each token's results times its weights [t, k]. `weights` is
  // undefined if the experts have applied them (LocalRows).
  virtual at::Tensor combine(const at::Tensor& rows, const at::Tensor& weights, const at::Tensor& residual) const = 0;

 protected:
  ops::GroupCounts counts_;
};

// Collective over the ranks, which tell each other how many tokens to expect. `device` is that of the tokens.
std::unique_ptr<DispatchPlan> plan_all_to_all(const ExpertLists& lists, const ExpertRanks& ranks,
                                              at::Device device = at::kCPU);
std::unique_ptr<DispatchPlan> plan_all_gather(const ExpertLists& lists, const ExpertRanks& ranks,
                                              at::Device device = at::kCPU);

}  // namespace megalith::nn
