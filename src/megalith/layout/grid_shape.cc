// Finds every reason why a shape is impossible. Two grids over the same ranks must both exist and agree about the
// pipelines. The checks stop early only where a later one would divide by a size that is out of range, so that a user
// sees all problems at once.
#include "megalith/layout/grid_shape.h"

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "megalith/base/text.h"
#include "megalith/layout/grid_advice_internal.h"

namespace megalith::layout {
namespace {

using Codes = std::vector<std::string_view>;

bool in_range(int size) { return size >= 1 && size <= kMaxGridSize; }

bool all_in_range(const GridShape& s) {
  return in_range(s.world_size) && in_range(s.tp) && in_range(s.pp) && in_range(s.cp) && in_range(s.ep) &&
         in_range(s.expert_tp()) && in_range(s.vpp.value_or(1)) && in_range(s.num_distributed_optimizer_instances) &&
         std::all_of(s.hierarchical_cp.begin(), s.hierarchical_cp.end(), in_range);
}

// Returns whether world_size is a multiple of a product of three sizes; each is at most 2^20, so nothing overflows.
bool divides(const GridShape& shape, int a, int b, int c) { return shape.world_size % (int64_t{a} * b * c) == 0; }

// Returns the axis of that name, in lower case.
std::optional<Axis> axis_of(std::string_view token) {
  for (Axis axis : kAllAxes) {
    if (token == name(axis)) return axis;
  }
  return std::nullopt;
}

// Returns the axes that the order names, skipping unknown words.
std::vector<Axis> named_axes(const std::string& order) {
  std::vector<Axis> axes;
  for (const std::string& token : split(to_lower(order), '-')) {
    if (const auto axis = axis_of(token)) axes.push_back(*axis);
  }
  return axes;
}

bool contains(const std::vector<Axis>& axes, Axis axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

// Checks that the order names every axis that matters, only known axes, and none twice.
void check_order_text(const GridShape& shape, Codes& codes) {
  const std::vector<Axis> named = named_axes(shape.order);
  const auto misses = [&](Axis axis, int size) { return size != 1 && !contains(named, axis); };
  const bool misses_dense = misses(Axis::kTp, shape.tp) || misses(Axis::kPp, shape.pp) || misses(Axis::kCp, shape.cp) ||
                            (dense_fits(shape) && misses(Axis::kDp, shape.dp()));
  const bool misses_expert = misses(Axis::kTp, shape.expert_tp()) || misses(Axis::kEp, shape.ep) ||
                             (expert_fits(shape) && misses(Axis::kDp, shape.edp()));
  if (misses_dense || misses_expert) codes.emplace_back("order_misses_dimension");
  // named_axes() skips unknown words, so a difference in number means one of them.
  if (split(shape.order, '-').size() != named.size()) codes.emplace_back("order_unknown_token");
  for (Axis axis : kAllAxes) {
    if (std::count(named.begin(), named.end(), axis) < 2) continue;
    codes.emplace_back("order_repeats_dimension");
    break;
  }
}

// For two existing grids and a valid order: checks that both grids form the same pipelines.
void check_pipelines(const GridShape& shape, Codes& codes) {
  if (shape.pp == 1) return;
  if (!shape.order.ends_with("pp") && shape.dp() != shape.edp()) {
    codes.emplace_back("order_not_pp_last");
  } else if (dense_grid(shape).stride(Axis::kPp) != expert_grid(shape).stride(Axis::kPp)) {
    // A pipeline is a first rank plus multiples of the stride, so equal strides mean equal pipelines in equal order.
    codes.emplace_back("pp_groups_differ");
  }
}

// The levels must multiply to cp, and each needs a group kind.
void check_hierarchical_cp(const GridShape& shape, Codes& codes) {
  if (shape.hierarchical_cp.empty()) return;
  // Saturates, so that no number of levels can overflow it.
  int64_t product = 1;
  for (int size : shape.hierarchical_cp) product = std::min<int64_t>(product * size, kMaxGridSize + 1);
  if (product != shape.cp) codes.emplace_back("hcp_product");
  if (shape.hierarchical_cp.size() > static_cast<size_t>(kMaxHierarchicalCpLevels)) codes.emplace_back("hcp_levels");
}

// Returns the named axes, then the others: those have size 1, so their position does not matter.
AxisGrid::Order full_order(const std::string& order) {
  std::vector<Axis> axes = named_axes(order);
  for (Axis axis : kAllAxes) {
    if (!contains(axes, axis)) axes.push_back(axis);
  }
  AxisGrid::Order result{};
  std::copy_n(axes.begin(), kNumAxes, result.begin());
  return result;
}

}  // namespace

bool dense_fits(const GridShape& shape) { return divides(shape, shape.tp, shape.pp, shape.cp); }

bool expert_fits(const GridShape& shape) { return divides(shape, shape.expert_tp(), shape.ep, shape.pp); }

std::vector<std::string_view> problem_codes(const GridShape& shape) {
  if (!all_in_range(shape)) return {"size_out_of_range"};
  Codes codes;
  const bool has_dp = dense_fits(shape);
  const bool has_edp = expert_fits(shape);
  if (!has_dp) codes.emplace_back("world_not_divisible");
  if (shape.vpp && shape.pp == 1) codes.emplace_back("vpp_needs_pp");
  // Without experts the expert grid is a coarser form of the dense one: report one problem, not two.
  const bool has_experts = shape.ep > 1 || shape.etp;
  if (!has_edp && (has_experts || has_dp)) codes.emplace_back("expert_grid");
  const size_t before_order = codes.size();
  check_order_text(shape, codes);
  if (has_dp && has_edp && codes.size() == before_order) check_pipelines(shape, codes);
  const int instances = shape.num_distributed_optimizer_instances;
  if (has_dp && shape.dp() * shape.cp % instances != 0) codes.emplace_back("instances_vs_dp_cp");
  if (has_edp && shape.edp() % instances != 0) codes.emplace_back("instances_vs_edp");
  check_hierarchical_cp(shape, codes);
  return codes;
}

std::vector<GridProblem> problems(const GridShape& shape) {
  std::vector<GridProblem> result;
  for (std::string_view code : problem_codes(shape)) result.push_back({code, explain(code, shape)});
  return result;
}

AxisGrid dense_grid(const GridShape& shape) {
  return {full_order(shape.order), {shape.tp, shape.cp, 1, shape.dp(), shape.pp}};
}

AxisGrid expert_grid(const GridShape& shape) {
  return {full_order(shape.order), {shape.expert_tp(), 1, shape.ep, shape.edp(), shape.pp}};
}

}  // namespace megalith::layout
