// ContextParallel: who holds the other tokens of this rank's sequences, and how attention reaches them.
#pragma once

#include <optional>
#include <string_view>

#include "megalith/comm/group.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::nn {

// cp_comm_type. What moves between ranks, with t tokens of a slice, n query and g key/value heads of a rank:
enum class ContextMode {
  kRing,          // p2p: keys and values travel round the ranks, while those at hand are computed with
  kAllGather,     // all_gather: every rank collects all keys and values
  kAllToAll,      // a2a: t tokens of n heads become t·cp tokens of n/cp heads, and back (Ulysses)
  kAllToAllRing,  // a2a+p2p: a2a among neighbours, a ring over the rest (hierarchical_context_parallel_sizes)
};

// p2p, all_gather (or allgather), a2a, a2a+p2p; throws ConfigError for other names.
ContextMode context_mode(std::string_view name);

// A small handle; copies share the groups. Not set: a group of one rank.
struct ContextParallel {
  std::optional<comm::Group> heads;   // trades tokens for heads by all-to-all
  std::optional<comm::Group> tokens;  // passes keys and values on
  bool gather = false;                // `tokens` collects them all at once, in place of a ring

  int head_ranks() const { return heads ? heads->size() : 1; }
  int token_ranks() const { return tokens ? tokens->size() : 1; }
  int size() const { return head_ranks() * token_ranks(); }

  // Throws ConfigError when heads cannot be dealt as the mode needs it; heads of one tensor-parallel rank. Fewer
  // key/value heads than ranks are repeated, where their number divides that of the ranks.
  void check_heads(int64_t heads_of_rank, int64_t kv_heads_of_rank) const;
};

// The groups of a rank. Throws ConfigError for kAllToAllRing without two hierarchical sizes.
ContextParallel context_parallel(const parallel::ParallelContext& context, ContextMode mode);

}  // namespace megalith::nn
