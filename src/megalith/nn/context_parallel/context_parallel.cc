// Names of modes, and the groups of each:
//
//   cp_comm_type   heads                    tokens
//   p2p            -                        cp, as a ring
//   all_gather     -                        cp, gathered
//   a2a            cp                       -
//   a2a+p2p        hcp 0 (inner, near)      hcp 1 (outer), as a ring
#include "megalith/nn/context_parallel/context_parallel.h"

#include "megalith/base/error.h"

namespace megalith::nn {

ContextMode context_mode(std::string_view name) {
  if (name == "p2p") return ContextMode::kRing;
  if (name == "all_gather" || name == "allgather") return ContextMode::kAllGather;
  if (name == "a2a") return ContextMode::kAllToAll;
  check<ConfigError>(name == "a2a+p2p", "cp_comm_type is '{}'; use p2p, all_gather, a2a or a2a+p2p", name);
  return ContextMode::kAllToAllRing;
}

void ContextParallel::check_heads(int64_t heads_of_rank, int64_t kv_heads_of_rank) const {
  const int ranks = head_ranks();
  const char* const advice = "use cp_comm_type p2p or all_gather, which do not split heads, or another size";
  check<ConfigError>(heads_of_rank % ranks == 0,
                     "cp_comm_type a2a cannot deal the {} attention heads of a tensor-parallel rank to {} "
                     "context-parallel ranks; {}",
                     heads_of_rank, ranks, advice);
  check<ConfigError>(kv_heads_of_rank % ranks == 0 || ranks % kv_heads_of_rank == 0,
                     "cp_comm_type a2a cannot deal the {} key/value heads of a tensor-parallel rank to {} "
                     "context-parallel ranks: one must be a multiple of the other; {}",
                     kv_heads_of_rank, ranks, advice);
}

ContextParallel context_parallel(const parallel::ParallelContext& context, ContextMode mode) {
  const layout::GridShape& shape = context.grid().shape();
  if (shape.cp == 1) return {};
  switch (mode) {
    case ContextMode::kRing:
      return {.heads = {}, .tokens = context.cp()};
    case ContextMode::kAllGather:
      return {.heads = {}, .tokens = context.cp(), .gather = true};
    case ContextMode::kAllToAll:
      return {.heads = context.cp(), .tokens = {}};
    case ContextMode::kAllToAllRing:
      break;
  }
  check<ConfigError>(
      shape.hierarchical_cp.size() == 2,
      "cp_comm_type a2a+p2p needs two hierarchical_context_parallel_sizes, one for a2a and one for p2p, with the "
      "product context_parallel_size {}; {} are given",
      shape.cp, shape.hierarchical_cp.size());
  return {.heads = context.group(layout::GroupKind::kHcp0), .tokens = context.group(layout::GroupKind::kHcp1)};
}

}  // namespace megalith::nn
