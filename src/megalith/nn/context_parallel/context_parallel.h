// ContextParallel: the ranks that hold the other tokens of this rank's sequences, and how attention reaches them.
#pragma once

#include <optional>
#include <string_view>

#include "megalith/comm/group.h"
#include "megalith/parallel/parallel_context.h"

namespace megalith::nn {

// Values of cp_comm_type: what the ranks exchange, with t tokens per slice and n query heads per rank.
enum class ContextMode {
  kRing,          // p2p: keys and values are passed around a ring while the block at hand is computed
  kAllGather,     // all_gather: every rank collects all keys and values
  kAllToAll,      // a2a: t tokens of n heads become t·cp tokens of n/cp heads, and back (Ulysses)
  kAllToAllRing,  // a2a+p2p: a2a among neighbors, a ring over the rest (hierarchical_context_parallel_sizes)
};

// Parses p2p, all_gather (or allgather), a2a or a2a+p2p; throws ConfigError for other names.
ContextMode context_mode(std::string_view name);

// A small handle; copies share the groups. A group that is not set has one rank.
struct ContextParallel {
  std::optional<comm::Group> heads;   // trades tokens for heads by all-to-all
  std::optional<comm::Group> tokens;  // exchanges keys and values
  bool gather = false;                // `tokens` gathers them all at once instead of passing them around a ring

  // Sizes of the two groups, and of both together: context_parallel_size.
  int head_ranks() const { return heads ? heads->size() : 1; }
  int token_ranks() const { return tokens ? tokens->size() : 1; }
  int size() const { return head_ranks() * token_ranks(); }

  // Throws ConfigError if the heads of one tensor-parallel rank cannot be split over head_ranks(). Key/value heads that
  // are fewer than head_ranks() are repeated, provided that their number divides it.
  void check_heads(int64_t heads_of_rank, int64_t kv_heads_of_rank) const;
};

// Returns the groups of this rank. Throws ConfigError for kAllToAllRing without two hierarchical sizes.
ContextParallel context_parallel(const parallel::ParallelContext& context, ContextMode mode);

}  // namespace megalith::nn
