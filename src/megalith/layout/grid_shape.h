// The requested sizes of a parallel layout, and whether such a layout exists.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/layout/axis_grid.h"

namespace megalith::layout {

// The user's choice. Two data-parallel sizes follow from it:
//   dense grid:  world_size = tp * cp * pp * dp          every parameter outside the experts
//   expert grid: world_size = etp * ep * pp * edp        expert parameters, over the same ranks
// So experts share the combined tp*cp*dp ranks; world_size is NOT tp*pp*cp*ep*dp.
struct GridShape {
  int world_size = 1;
  int tp = 1;              // ranks that split each weight matrix
  int pp = 1;              // pipeline stages
  int cp = 1;              // ranks that split each sequence
  int ep = 1;              // ranks that share the experts of a layer
  std::optional<int> etp;  // ranks that split each expert's matrices; tp when not given
  std::optional<int> vpp;  // virtual stages (chunks) per pipeline rank; needs pp > 1; does not change the groups
  // Axes from fastest to slowest varying with the rank. An axis of size 1 may be left out. Case is ignored, with one
  // exception taken from the reference: with pp > 1, an order that does not end in lower-case "pp" needs dp = edp.
  std::string order = "tp-cp-ep-dp-pp";
  int num_distributed_optimizer_instances = 1;  // copies of the sharded optimizer state; must divide dp*cp and edp
  std::vector<int> hierarchical_cp;             // sizes of nested cp groups, neighbors first; may be empty

  // Returns etp, or tp where it is not given.
  int expert_tp() const { return etp.value_or(tp); }
  // The derived sizes, valid if the shape has no problem.
  int dp() const { return world_size / (tp * pp * cp); }
  int edp() const { return world_size / (expert_tp() * ep * pp); }
};

// The most nested cp groups that have their own group kind (GroupKind::kHcp0 … kHcp7).
inline constexpr int kMaxHierarchicalCpLevels = 8;
// Larger sizes are rejected before anything is multiplied, so that products of three fit in 64 bits.
inline constexpr int kMaxGridSize = 1 << 20;

// One reason why a shape is impossible.
struct GridProblem {
  // Stable names. From golden groups.json: world_not_divisible, expert_grid, vpp_needs_pp, order_misses_dimension,
  // order_unknown_token, order_not_pp_last, pp_groups_differ, instances_vs_dp_cp, instances_vs_edp, hcp_product. Our
  // own: size_out_of_range, order_repeats_dimension, hcp_levels.
  std::string_view code;
  // Says what was given, why it is impossible, and which nearest settings would work.
  std::string message;
};

// Returns every problem of the shape; empty if a RankGrid can be built from it.
std::vector<GridProblem> problems(const GridShape& shape);
// Returns only the codes, which is cheap enough to try many shapes.
std::vector<std::string_view> problem_codes(const GridShape& shape);
inline bool is_possible(const GridShape& shape) { return problem_codes(shape).empty(); }

// Return the two grids of a shape without problems.
AxisGrid dense_grid(const GridShape& shape);
AxisGrid expert_grid(const GridShape& shape);

}  // namespace megalith::layout
