// Every group is a Cut: the axes that vary inside it, in one of the two grids, possibly cut into parts of a parent
// group (hierarchical cp, optimizer instances). Three kinds do not fit: the two embedding kinds, which a function
// selects from a pipeline, and intra_dist_opt, which joins tp_ep_pp groups. With p = outer·size·inner + member·inner +
// i as the place in the parent, all questions are divisions of p.
#include "megalith/layout/rank_grid.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/layout/problem_list_internal.h"

namespace megalith::layout {
namespace {

// Passes the shape through, or throws with all its problems.
GridShape checked(GridShape shape) {
  std::vector<std::string> messages;
  for (GridProblem& problem : problems(shape)) messages.push_back(std::move(problem.message));
  throw_if_any("impossible parallel layout", messages);
  return shape;
}

// The grid that a kind is cut out of (dense or expert), and the axes that vary within a group.
struct GridAxes {
  bool expert;
  AxisSet axes;
};

// Returns the grid and the axes of the kinds that are cut out of a grid.
GridAxes grid_axes(GroupKind kind) {
  using enum Axis;
  switch (kind) {
    case GroupKind::kDpCp:
    case GroupKind::kIntraDpCp:
      return {false, {kDp, kCp}};
    case GroupKind::kDp:
      return {false, {kDp}};
    case GroupKind::kTpPp:
      return {false, {kTp, kPp}};
    case GroupKind::kTp:
      return {false, {kTp}};
    case GroupKind::kPp:
      return {false, {kPp}};
    case GroupKind::kTpDpCp:
      return {false, {kTp, kDp, kCp}};
    case GroupKind::kTpDp:
      return {false, {kTp, kDp}};
    case GroupKind::kTpCp:
      return {false, {kTp, kCp}};
    case GroupKind::kEp:
      return {true, {kEp}};
    case GroupKind::kEtp:
      return {true, {kTp}};
    case GroupKind::kTpEp:
      return {true, {kTp, kEp}};
    case GroupKind::kTpEpPp:
      return {true, {kTp, kEp, kPp}};
    case GroupKind::kEdp:
    case GroupKind::kIntraEdp:
    case GroupKind::kInterEdp:
      return {true, {kDp}};
    // kCp and its levels share the axes; the levels are cut further.
    default:
      check(kind == GroupKind::kCp || hcp_level(kind) >= 0, "group kind {} is not cut out of a grid", name(kind));
      return {false, {kCp}};
  }
}

}  // namespace

// With one stage, the two are the same rank.
std::vector<int> first_and_last_stage(std::span<const int> pp_ranks) {
  if (pp_ranks.size() == 1) return {pp_ranks.front()};
  return {pp_ranks.front(), pp_ranks.back()};
}

std::vector<int> first_stage(std::span<const int> pp_ranks) { return {pp_ranks.front()}; }

RankGrid::RankGrid(GridShape shape, PipelineRanks embedding, PipelineRanks position_embedding)
    : shape_(checked(std::move(shape))),
      dense_(dense_grid(shape_)),
      expert_(expert_grid(shape_)),
      embedding_(std::move(embedding)),
      position_embedding_(std::move(position_embedding)) {}

// Leaves out kinds that would only repeat others.
std::vector<GroupKind> RankGrid::kinds() const {
  std::vector<GroupKind> result;
  for (GroupKind kind : all_group_kinds()) {
    const bool partial = kind == GroupKind::kIntraDpCp || kind == GroupKind::kIntraEdp || kind == GroupKind::kInterEdp;
    if (partial && shape_.num_distributed_optimizer_instances == 1) continue;
    if (hcp_level(kind) >= static_cast<int>(shape_.hierarchical_cp.size())) continue;
    result.push_back(kind);
  }
  return result;
}

// Groups of a kind cover all ranks without overlap, except for the embedding kinds, of which every pipeline has one.
int RankGrid::group_count(GroupKind kind) const {
  if (pipeline_function(kind) != nullptr) return group_count(GroupKind::kPp);
  if (kind == GroupKind::kIntraDistOpt) return shape_.num_distributed_optimizer_instances;
  return world_size() / cut(kind).size;
}

std::vector<int> RankGrid::group(GroupKind kind, int index) const {
  check(index >= 0 && index < group_count(kind), "there is no {} group {}: this layout has {} of them", name(kind),
        index, group_count(kind));
  if (const PipelineRanks* choose = pipeline_function(kind)) return pipeline_group(*choose, kind, index);
  if (kind == GroupKind::kIntraDistOpt) return instance_group(index);
  const Cut c = cut(kind);
  const int parent = index / c.groups_per_parent();
  // part = outer·inner + i numbers the groups inside the parent; its first member has place outer·inner·size + i.
  const int part = index % c.groups_per_parent();
  const int first_place = part / c.inner * c.inner * c.size + part % c.inner;
  std::vector<int> ranks(static_cast<size_t>(c.size));
  for (int i = 0; i < c.size; ++i) {
    ranks[static_cast<size_t>(i)] = c.grid.rank_at(c.axes, parent, first_place + i * c.inner);
  }
  return ranks;
}

// O(world size) memory; callers with large layouts ask for single groups.
std::vector<std::vector<int>> RankGrid::groups(GroupKind kind) const {
  std::vector<std::vector<int>> result(static_cast<size_t>(group_count(kind)));
  for (size_t i = 0; i < result.size(); ++i) result[i] = group(kind, static_cast<int>(i));
  return result;
}

// The inverse of group(): divides the place in the parent into outer, member and inner, and drops the member.
int RankGrid::group_index(GroupKind kind, int rank) const {
  check_rank(rank);
  if (pipeline_function(kind) != nullptr) return group_index(GroupKind::kPp, rank);
  if (kind == GroupKind::kIntraDistOpt) return expert_.coordinate(rank, Axis::kDp) / edp_per_instance();
  const Cut c = cut(kind);
  const int place = c.grid.place(c.axes, rank);
  const int part = place / (c.inner * c.size) * c.inner + place % c.inner;
  return c.grid.group_index(c.axes, rank) * c.groups_per_parent() + part;
}

std::vector<int> RankGrid::group_of(GroupKind kind, int rank) const {
  std::vector<int> ranks = group(kind, group_index(kind, rank));
  // Only the embedding kinds leave ranks out: those of inner stages.
  const bool may_miss = pipeline_function(kind) != nullptr;
  if (may_miss && std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.clear();
  return ranks;
}

std::optional<int> RankGrid::group_rank(GroupKind kind, int rank) const {
  check_rank(rank);
  if (pipeline_function(kind) != nullptr) {
    const std::vector<int> ranks = group_of(kind, rank);
    if (ranks.empty()) return std::nullopt;
    // Members of a process group are numbered by rank, whatever order the caller's function has chosen.
    return static_cast<int>(std::count_if(ranks.begin(), ranks.end(), [&](int other) { return other < rank; }));
  }
  if (kind == GroupKind::kIntraDistOpt) return expert_.place_in_block(Axis::kDp, edp_per_instance(), rank);
  const Cut c = cut(kind);
  return c.grid.place(c.axes, rank) / c.inner % c.size;
}

// Coordinates where a kind is a single axis, group ranks where it joins several.
RankPlace RankGrid::place(int rank) const {
  check_rank(rank);
  RankPlace p{};
  const auto in = [&](GroupKind kind) { return group_rank(kind, rank).value(); };
  p.tp_rank = dense_.coordinate(rank, Axis::kTp);
  p.pp_rank = dense_.coordinate(rank, Axis::kPp);
  p.cp_rank = dense_.coordinate(rank, Axis::kCp);
  p.dp_rank = dense_.coordinate(rank, Axis::kDp);
  p.dp_cp_rank = in(GroupKind::kDpCp);
  p.tp_cp_rank = in(GroupKind::kTpCp);
  p.ep_rank = expert_.coordinate(rank, Axis::kEp);
  p.etp_rank = expert_.coordinate(rank, Axis::kTp);
  p.tp_ep_rank = in(GroupKind::kTpEp);
  p.edp_rank = expert_.coordinate(rank, Axis::kDp);
  p.tp_src_rank = src_rank(GroupKind::kTp, rank);
  p.mp_src_rank = src_rank(GroupKind::kTpPp, rank);
  p.dp_src_rank = src_rank(GroupKind::kDp, rank);
  p.dp_cp_src_rank = src_rank(GroupKind::kDpCp, rank);
  p.ep_src_rank = src_rank(GroupKind::kEp, rank);
  // A pipeline is a first rank plus multiples of the stride, so neighbors are found without building the group.
  const int stride = dense_.stride(Axis::kPp);
  const int pp = shape_.pp;
  p.pp_first_rank = rank - p.pp_rank * stride;
  p.pp_last_rank = p.pp_first_rank + (pp - 1) * stride;
  p.pp_next_rank = p.pp_first_rank + (p.pp_rank + 1) % pp * stride;
  p.pp_prev_rank = p.pp_first_rank + (p.pp_rank + pp - 1) % pp * stride;
  p.in_embedding_group = group_rank(GroupKind::kEmbedding, rank).has_value();
  p.in_position_embedding_group = group_rank(GroupKind::kPositionEmbedding, rank).has_value();
  p.intra_dp_cp_rank = in(GroupKind::kIntraDpCp);
  p.intra_edp_rank = in(GroupKind::kIntraEdp);
  p.intra_dist_opt_rank = in(GroupKind::kIntraDistOpt);
  return p;
}

RankGrid::Cut RankGrid::cut(GroupKind kind) const {
  const auto [is_expert, axes] = grid_axes(kind);
  const AxisGrid& grid = is_expert ? expert_ : dense_;
  if (const int level = hcp_level(kind); level >= 0) return cut_level(grid, axes, shape_.hierarchical_cp, level);
  const int whole = grid.group_size(axes);
  const int instances = shape_.num_distributed_optimizer_instances;
  // An optimizer instance is a run of neighbors in the parent group; inter_edp joins equal places of all instances.
  const std::array<int, 2> shares{whole / instances, instances};
  if (kind == GroupKind::kIntraDpCp || kind == GroupKind::kIntraEdp) return cut_level(grid, axes, shares, 0);
  if (kind == GroupKind::kInterEdp) return cut_level(grid, axes, shares, 1);
  return {grid, axes, 1, whole};
}

// Splits a parent group of sizes[0]*sizes[1]*… ranks level by level: level 0 takes neighbors, each further level ranks
// that are the product of all lower sizes apart.
RankGrid::Cut RankGrid::cut_level(const AxisGrid& grid, AxisSet axes, std::span<const int> sizes, int level) const {
  check(level < static_cast<int>(sizes.size()), "there is no group kind hcp_{}: hierarchical_cp has {} levels", level,
        sizes.size());
  int inner = 1;
  for (int i = 0; i < level; ++i) inner *= sizes[static_cast<size_t>(i)];
  return {grid, axes, inner, sizes[static_cast<size_t>(level)]};
}

const PipelineRanks* RankGrid::pipeline_function(GroupKind kind) const {
  if (kind == GroupKind::kEmbedding) return &embedding_;
  if (kind == GroupKind::kPositionEmbedding) return &position_embedding_;
  return nullptr;
}

// Checks the choice of the caller's function: ranks of this pipeline, each at most once.
std::vector<int> RankGrid::pipeline_group(const PipelineRanks& choose, GroupKind kind, int index) const {
  const std::vector<int> pipeline = group(GroupKind::kPp, index);
  std::vector<int> chosen = choose(pipeline);
  std::vector<int> sorted = chosen;
  std::sort(sorted.begin(), sorted.end());
  const bool repeated = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  check<ConfigError>(!repeated && std::includes(pipeline.begin(), pipeline.end(), sorted.begin(), sorted.end()),
                     "the function for {} groups chose ranks [{}] from the pipeline [{}]; it must choose some of these "
                     "ranks, each once",
                     name(kind), fmt::join(chosen, ","), fmt::join(pipeline, ","));
  return chosen;
}

std::vector<int> RankGrid::instance_group(int index) const {
  std::vector<int> ranks;
  ranks.reserve(static_cast<size_t>(world_size() / shape_.num_distributed_optimizer_instances));
  // The groups of tp_ep_pp are numbered by the one remaining axis, edp.
  for (int i = 0; i < edp_per_instance(); ++i) {
    const std::vector<int> part = group(GroupKind::kTpEpPp, index * edp_per_instance() + i);
    ranks.insert(ranks.end(), part.begin(), part.end());
  }
  return ranks;
}

// The member with place 0 in the parent group.
int RankGrid::src_rank(GroupKind kind, int rank) const {
  const Cut c = cut(kind);
  return c.grid.rank_at(c.axes, c.grid.group_index(c.axes, rank), 0);
}

void RankGrid::check_rank(int rank) const {
  check(rank >= 0 && rank < world_size(), "rank {} is outside this layout of {} ranks", rank, world_size());
}

}  // namespace megalith::layout
