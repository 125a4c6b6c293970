// The sizes that a parallel layout is asked to have, and whether such a layout exists.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/layout/axis_grid.h"

namespace megalith::layout {

// What the user chose. The data-parallel sizes follow from it (spec/initialize.md §3), there are two of them:
//   dense grid:  world_size = tp * cp * pp * dp          every parameter outside the experts
//   expert grid: world_size = etp * ep * pp * edp        expert parameters, over the same ranks
// so experts are carved out of the combined tp*cp*dp ranks, and world_size = tp*pp*cp*ep*dp is NOT how sizes are
// computed.
struct GridShape {
  int world_size = 1;
  int tp = 1;              // ranks that split each weight matrix
  int pp = 1;              // pipeline stages
  int cp = 1;              // ranks that split each sequence
  int ep = 1;              // ranks that share the experts of a layer
  std::optional<int> etp;  // ranks that split each expert's matrices; tp when not given
  std::optional<int> vpp;  // virtual stages (chunks) a pipeline rank; needs pp > 1; does not change the groups
  // Axes from fastest to slowest varying with the rank. An axis of size 1 may be left out. Case is ignored, except by
  // the rule that an order which does not end in "pp" needs dp = edp when pp > 1 (as in the reference).
  std::string order = "tp-cp-ep-dp-pp";
  int num_distributed_optimizer_instances = 1;  // copies of the sharded optimizer state; must divide dp*cp and edp
  std::vector<int> hierarchical_cp;             // sizes of nested cp groups, neighbours first; empty: none

  int expert_tp() const { return etp.value_or(tp); }
  // The derived sizes; they require that the shape has no problem.
  int dp() const { return world_size / (tp * pp * cp); }
  int edp() const { return world_size / (expert_tp() * ep * pp); }
};

// The most nested cp groups that have a group kind of their own (GroupKind::kHcp0 … kHcp7).
inline constexpr int kMaxHierarchicalCpLevels = 8;
// Sizes above this are refused before anything is multiplied.
inline constexpr int kMaxGridSize = 1 << 20;

// One reason why a shape is impossible.
struct GridProblem {
  // Stable names, those of golden groups.json: world_not_divisible, expert_grid, vpp_needs_pp, order_misses_dimension,
  // order_unknown_token, order_not_pp_last, pp_groups_differ, instances_vs_dp_cp, instances_vs_edp, hcp_product; and
  // our own: size_out_of_range, order_repeats_dimension, hcp_levels.
  std::string_view code;
  // What was given, why it cannot be, and the nearest settings that would work.
  std::string message;
};

// Every problem of the shape; none when a RankGrid can be made of it.
std::vector<GridProblem> problems(const GridShape& shape);
// The codes alone: cheap enough to try many shapes.
std::vector<std::string_view> problem_codes(const GridShape& shape);
inline bool is_possible(const GridShape& shape) { return problem_codes(shape).empty(); }

// The two grids of a shape without problems.
AxisGrid dense_grid(const GridShape& shape);
AxisGrid expert_grid(const GridShape& shape);

}  // namespace megalith::layout
