// Token dispatch: how tokens reach the ranks that hold their experts, and how the results return.
//
//   kind       dispatch                                            combine
//   alltoall   copies of tokens, by destination: all-to-all        all-to-all, weighted sum of the copies
//   allgather  all tokens of the group: all-gather                 weighted sums over local experts: reduce-scatter
//
// The group consists of the ranks that together hold one copy of all experts (ep · etp ranks). If experts are split
// (etp > 1), a token goes to every rank that has a part of its expert, and the final sum adds the parts.
//
// Lists and maps stay on the device. The host reads one small tensor per dispatch, the loads of all members, since it
// must size the buffers; nothing if sizes follow from the shape: on one rank, or if every expert is filled up to its
// capacity and the members are known to have equally many tokens.
//
// Legend: t tokens of this rank (may differ between ranks, may be 0), k experts per token, r rows for this rank's
// experts.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "megalith/comm/group.h"
#include "megalith/nn/moe/moe_shape.h"
#include "megalith/nn/moe/routing.h"
#include "megalith/ops/gemm/grouped_gemm.h"
#include "megalith/ops/kernel/host_values.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::nn {

// The ranks that together hold all experts.
struct ExpertRanks {
  comm::Group group;
  std::vector<int> ep_rank;  // per member: it holds experts [ep_rank · n, (ep_rank + 1) · n)
  int ep = 1, etp = 1;
  bool same_tokens = false;  // all members have the same number of tokens, being ranks of one replica
  static ExpertRanks of(const parallel::ParallelContext& context);

  // Returns the first expert of this rank.
  int64_t own_first(int64_t per_rank) const { return ep_rank[static_cast<size_t>(group.rank())] * per_rank; }
};

// The loads of all members of a group: what the host has to know to size the buffers of a dispatch. The members gather
// them on the device, and the host reads them once. Nothing waits before on_host().
class MemberLoads {
 public:
  // `rows` int64 [E] counts this rank's rows for each expert, `tokens` its tokens. Collective over the group.
  MemberLoads(const at::Tensor& rows, int64_t tokens, const comm::Group& group);

  // Return int64 [members, E + 1]: rows for each expert, tokens last. on_host() waits for the device if it has to.
  const at::Tensor& on_device() const { return gathered_; }
  const at::Tensor& on_host() const;
  // Returns the rows of one member for experts [first, first + count), from the host's copy.
  int64_t rows(int64_t member, int64_t first, int64_t count) const;

 private:
  at::Tensor gathered_;
  ops::HostTensor host_;
  mutable at::Tensor read_;  // undefined until the first wait
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
  // x [t, h] -> rows [r, h] for this rank's experts, grouped by expert. Called once, first. If sizes depend on the
  // routing, the host waits here for their counts. Calls `meanwhile`, if given, while the tokens are in flight;
  // backward runs its part while the gradients are.
  virtual at::Tensor dispatch(const at::Tensor& x, const std::function<void()>& meanwhile) = 0;
  const ops::GroupCounts& counts() const { return counts_; }
  // Returns what the experts can do themselves. Takes x as given to dispatch(), and the weights [t, k] of its tokens'
  // choices.
  virtual LocalRows local(const at::Tensor& /*x*/, const at::Tensor& /*weights*/) const { return {}; }
  // Outputs of the experts [r, h] -> residual() + the sum of each token's results times its weights [t, k]. `weights`
  // is undefined if the experts have applied them (LocalRows). Calls `residual`, which may return an undefined tensor,
  // while the outputs are in flight; backward runs its part while their gradients are.
  virtual at::Tensor combine(const at::Tensor& rows, const at::Tensor& weights,
                             const std::function<at::Tensor()>& residual) const = 0;

 protected:
  ops::GroupCounts counts_;
};

// Whether the host can size the buffers of a dispatch without the loads of the members.
bool knows_sizes(const ExpertLists& lists, const ExpertRanks& ranks, MoeOptions::Dispatcher dispatcher);
// Returns a plan. `loads` are those of the same lists, gathered by gather_loads(); nullptr if knows_sizes().
std::unique_ptr<DispatchPlan> plan_dispatch(const ExpertLists& lists, const ExpertRanks& ranks,
                                            MoeOptions::Dispatcher dispatcher,
                                            std::shared_ptr<const MemberLoads> loads);
// Gathers the rows and tokens of all members. Collective; does not wait.
std::shared_ptr<const MemberLoads> gather_loads(const ExpertLists& lists, const ExpertRanks& ranks,
                                                MoeOptions::Dispatcher dispatcher);

// The two kinds of plan_dispatch().
std::unique_ptr<DispatchPlan> plan_all_to_all(const ExpertLists& lists, const ExpertRanks& ranks,
                                              std::shared_ptr<const MemberLoads> loads);
std::unique_ptr<DispatchPlan> plan_all_gather(const ExpertLists& lists, const ExpertRanks& ranks,
                                              std::shared_ptr<const MemberLoads> loads);

}  // namespace megalith::nn
