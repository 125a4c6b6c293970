#include "megalith/parallel/parallel_context.h"

#include <algorithm>

#include "megalith/base/error.h"

namespace megalith::parallel {

using layout::GroupKind;

ParallelContext::ParallelContext(comm::World& world, layout::RankGrid grid, at::Device device)
    : world_(world), grid_(std::move(grid)), place_(grid_.place(world.rank())), device_(device), rng_(device) {
  check(grid_.world_size() == world.size(), "a grid of {} ranks for a world of {}", grid_.world_size(), world.size());
}

namespace {

// Returns the lane of a kind: groups with the same ranks and lane share connections (World::group). Gradients are
// reduced alongside compute, so they are kept apart from the exchanges between steps. Groups that work inside layers
// have their own connections.
std::string lane_of(GroupKind kind) {
  switch (kind) {
    case GroupKind::kDpCp:
    case GroupKind::kIntraDpCp:
      return "gradients";
    case GroupKind::kEdp:
    case GroupKind::kIntraEdp:
      return "gradients of experts";
    case GroupKind::kDp:
    case GroupKind::kTpPp:
    case GroupKind::kTpEpPp:
    case GroupKind::kTpDp:
    case GroupKind::kTpDpCp:
    case GroupKind::kIntraDistOpt:
      return comm::World::kControlLane;
    default:
      return "";
  }
}

}  // namespace

comm::Group ParallelContext::group(GroupKind kind) const {
  const auto known = groups_.find(kind);
  if (known != groups_.end()) return known->second;
  std::vector<int> ranks = grid_.group_of(kind, rank());
  check(!ranks.empty(), "rank {} is in no {} group", rank(), layout::name(kind));
  std::ranges::sort(ranks);
  return groups_.emplace(kind, world_.group(std::string(layout::name(kind)), ranks, lane_of(kind))).first->second;
}

comm::Group ParallelContext::pipeline_messages(bool forward) const {
  return world_.group(forward ? "pp_forward" : "pp_backward", pp().ranks());
}

bool ParallelContext::in_group(GroupKind kind) const { return grid_.group_rank(kind, rank()).has_value(); }

comm::Group ParallelContext::dp(bool with_cp, bool partial) const {
  check(with_cp || !partial, "a partial data-parallel group is always one over dp and cp");
  if (partial) return group(GroupKind::kIntraDpCp);
  return group(with_cp ? GroupKind::kDpCp : GroupKind::kDp);
}

bool ParallelContext::is_first_stage(std::optional<int> chunk) const {
  return place_.pp_rank == 0 && chunk.value_or(0) == 0;
}

bool ParallelContext::is_last_stage(std::optional<int> chunk) const {
  const int last_chunk = grid_.shape().vpp.value_or(1) - 1;
  return place_.pp_rank == grid_.shape().pp - 1 && chunk.value_or(last_chunk) == last_chunk;
}

}  // namespace megalith::parallel
