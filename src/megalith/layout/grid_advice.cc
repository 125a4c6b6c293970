// Messages for impossible layouts. Each explains one code of problem_codes() and, where it can, searches for the
// nearest shapes that work: it replaces sizes by their divisors and asks problem_codes() about every candidate. For
// realistic sizes that is a few hundred candidates, each a handful of divisions, and only when a run is refused anyway.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <tuple>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/layout/grid_advice_internal.h"

namespace megalith::layout {
namespace {

// More would hide the nearest one.
constexpr size_t kMostSuggestions = 4;

// Sizes are only ever replaced by their divisors: whatever the old size divided (heads, layers, experts), a divisor of
// it divides too. Largest first.
std::vector<int> divisors(int n) {
  std::vector<int> result;
  for (int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    result.push_back(static_cast<int>(d));
    if (d * d != n) result.push_back(static_cast<int>(n / d));
  }
  std::sort(result.begin(), result.end(), std::greater<>());
  return result;
}

// Returns whether the candidate solves the problem `code` without adding one that is not `known`.
bool mends(const GridShape& candidate, std::string_view code, const std::vector<std::string_view>& known) {
  for (std::string_view c : problem_codes(candidate)) {
    if (c == code || std::find(known.begin(), known.end(), c) == known.end()) return false;
  }
  return true;
}

// Returns "tp=2 pp=2, tp=2 pp=1, …".
std::string join_suggestions(const std::vector<std::string>& texts) {
  const size_t shown = std::min(texts.size(), kMostSuggestions);
  return fmt::format("{}{}", fmt::join(texts.begin(), texts.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                     texts.size() > shown ? ", …" : "");
}

// Returns "start 8 or 16 ranks": the nearest world sizes that both grids divide.
std::string start_other_ranks(const GridShape& shape) {
  const int64_t dense = int64_t{shape.tp} * shape.pp * shape.cp;
  const int64_t expert = int64_t{shape.expert_tp()} * shape.ep * shape.pp;
  const int64_t unit = std::lcm(dense, expert);
  const int64_t below = shape.world_size / unit * unit;
  if (below == 0) return fmt::format("start {} ranks", unit);
  return fmt::format("start {} or {} ranks", below, below + unit);
}

// Offers other sizes for the given ranks, and other numbers of ranks for the given sizes.
std::string with_these_ranks(const GridShape& shape, const std::vector<std::string>& suggestions) {
  const std::string start = start_other_ranks(shape);
  if (suggestions.empty()) return fmt::format("Nothing smaller fits {} ranks: {}.", shape.world_size, start);
  return fmt::format("With {} ranks: {}; or {}.", shape.world_size, join_suggestions(suggestions), start);
}

// Candidates with the largest product first, then the largest tp, then pp: nearest to the request.
std::vector<std::string> smaller_dense_sizes(const GridShape& shape) {
  const auto known = problem_codes(shape);
  std::vector<std::tuple<int64_t, int, int, int>> fitting;
  for (int tp : divisors(shape.tp)) {
    for (int pp : divisors(shape.pp)) {
      for (int cp : divisors(shape.cp)) {
        GridShape candidate = shape;
        std::tie(candidate.tp, candidate.pp, candidate.cp) = std::tuple(tp, pp, cp);
        if (mends(candidate, "world_not_divisible", known)) fitting.emplace_back(int64_t{tp} * pp * cp, tp, pp, cp);
      }
    }
  }
  std::sort(fitting.begin(), fitting.end(), std::greater<>());
  std::vector<std::string> texts;
  for (const auto& [product, tp, pp, cp] : fitting) {
    texts.push_back(fmt::format("tp={} pp={}", tp, pp) + (shape.cp > 1 ? fmt::format(" cp={}", cp) : ""));
  }
  return texts;
}

// The same for ep and etp.
std::vector<std::string> smaller_expert_sizes(const GridShape& shape) {
  const auto known = problem_codes(shape);
  std::vector<std::tuple<int64_t, int, int>> found;
  for (int ep : divisors(shape.ep)) {
    for (int etp : divisors(shape.expert_tp())) {
      GridShape candidate = shape;
      candidate.ep = ep;
      candidate.etp = etp;
      if (mends(candidate, "expert_grid", known)) found.emplace_back(int64_t{ep} * etp, ep, etp);
    }
  }
  std::sort(found.begin(), found.end(), std::greater<>());
  std::vector<std::string> texts;
  for (const auto& [product, ep, etp] : found) texts.push_back(fmt::format("ep={} etp={}", ep, etp));
  return texts;
}

// The dense product must divide world_size.
std::string explain_world(const GridShape& s) {
  const int64_t product = int64_t{s.tp} * s.pp * s.cp;
  return fmt::format("tp*pp*cp = {}*{}*{} = {} does not divide world_size {}; dp would be {:.4g}. {}", s.tp, s.pp, s.cp,
                     product, s.world_size, static_cast<double>(s.world_size) / static_cast<double>(product),
                     with_these_ranks(s, smaller_dense_sizes(s)));
}

// The product of the expert grid must divide world_size. Without --etp it follows tp, which users may not expect.
std::string explain_expert(const GridShape& s) {
  const int64_t product = int64_t{s.expert_tp()} * s.ep * s.pp;
  return fmt::format("etp*ep*pp = {}*{}*{} = {} does not divide world_size {}; edp would be {:.4g}{}. {}",
                     s.expert_tp(), s.ep, s.pp, product, s.world_size,
                     static_cast<double>(s.world_size) / static_cast<double>(product),
                     s.etp ? "" : " (etp is tp unless it is given)", with_these_ranks(s, smaller_expert_sizes(s)));
}

// Searches for the smallest pipeline that the given ranks allow.
std::string explain_vpp(const GridShape& s) {
  std::string pp_text;
  // 64 stages are more than anyone means who forgot to give pp.
  for (int pp = 2; pp <= std::min(s.world_size, 64); ++pp) {
    GridShape candidate = s;
    candidate.pp = pp;
    if (!is_possible(candidate)) continue;
    pp_text = fmt::format(", or use a pipeline, e.g. pp={} vpp={} with {} ranks", pp, *s.vpp, s.world_size);
    break;
  }
  return fmt::format(
      "vpp={} was given although pp is 1: virtual stages interleave the ranks of a pipeline. Leave vpp "
      "out{}.",
      *s.vpp, pp_text);
}

// Names the axes that the order leaves out although their size in one of the grids is not 1.
std::string explain_misses(const GridShape& s) {
  const std::string order = to_lower(s.order);
  const std::vector<std::string> tokens = split(order, '-');
  const int dp = dense_fits(s) ? s.dp() : 1;
  const int edp = expert_fits(s) ? s.edp() : 1;
  // An axis may be left out of the order only if its size is 1 in both grids.
  const AxisGrid::Sizes dense{s.tp, s.cp, 1, dp, s.pp};
  const AxisGrid::Sizes expert{s.expert_tp(), 1, s.ep, edp, s.pp};
  std::vector<std::string> missing;
  for (Axis axis : kAllAxes) {
    const auto i = static_cast<size_t>(axis);
    if (std::find(tokens.begin(), tokens.end(), name(axis)) != tokens.end()) continue;
    if (dense[i] == 1 && expert[i] == 1) continue;
    const bool expert_only = dense[i] == 1;
    missing.push_back(
        fmt::format("{} (size {}{})", name(axis), expert_only ? expert[i] : dense[i], expert_only ? ", experts" : ""));
  }
  return fmt::format(
      "order '{}' leaves out {}; only an axis of size 1 may be left out. Name every axis, e.g. "
      "order=tp-cp-ep-dp-pp or order=tp-cp-ep-pp-dp.",
      s.order, list_in_words(missing));
}

// Names the words of the order that are not axes.
std::string explain_order_token(const GridShape& s) {
  std::vector<std::string> unknown;
  for (const std::string& token : split(to_lower(s.order), '-')) {
    const bool known = std::any_of(kAllAxes.begin(), kAllAxes.end(), [&](Axis a) { return token == name(a); });
    if (!known) unknown.emplace_back("'" + token + "'");
  }
  return fmt::format(
      "order '{}' contains {}, which is not an axis. The axes are tp, cp, ep, dp and pp, joined with '-', "
      "e.g. order=tp-cp-ep-dp-pp.",
      s.order, list_in_words(unknown));
}

// Returns the order with pp moved to the slowest place.
std::string pp_last(const std::string& order) {
  std::string result;
  for (const std::string& token : split(to_lower(order), '-')) {
    if (token != "pp") result += token + "-";
  }
  return result + "pp";
}

// Suggests the same order with pp last if that solves the problem, else the default order.
std::string explain_pp_place(const GridShape& s, std::string_view code) {
  GridShape candidate = s;
  candidate.order = pp_last(s.order);
  const std::string instead = mends(candidate, code, problem_codes(s)) ? candidate.order : "tp-cp-ep-dp-pp";
  const int64_t dense_inner = int64_t{s.tp} * s.cp;
  if (code == "pp_groups_differ") {
    return fmt::format(
        "order '{}' gives the experts other pipelines than the rest of the model (pp={}, tp*cp={}, "
        "etp*ep={}). Make pp the slowest axis: order={}.",
        s.order, s.pp, dense_inner, int64_t{s.expert_tp()} * s.ep, instead);
  }
  return fmt::format(
      "order '{}' does not end in 'pp' (lower case); with pp={} that needs dp = edp, but dp={} and "
      "edp={}. Make pp the slowest axis (order={}), or choose etp*ep = tp*cp = {}.",
      s.order, s.pp, s.dp(), s.edp(), instead, dense_inner);
}

// The allowed numbers of instances divide both dp*cp and edp.
std::string explain_instances(const GridShape& s, std::string_view code) {
  const bool both_fit = dense_fits(s) && expert_fits(s);
  const bool dense = code == "instances_vs_dp_cp";
  const int size = dense ? s.dp() * s.cp : s.edp();
  const int common = both_fit ? std::gcd(s.dp() * s.cp, s.edp()) : size;
  std::vector<int> allowed = divisors(common);
  std::reverse(allowed.begin(), allowed.end());
  return fmt::format("num_distributed_optimizer_instances={} does not divide {} = {}. Use {}.",
                     s.num_distributed_optimizer_instances,
                     dense ? fmt::format("dp*cp = {}*{}", s.dp(), s.cp) : std::string("edp"), size,
                     allowed.size() == 1 ? std::string("1") : "one of " + list_in_words(allowed));
}

// Suggests the smallest nontrivial factor of cp as the inner level.
std::string explain_hcp(const GridShape& s, std::string_view code) {
  if (code == "hcp_levels") {
    return fmt::format("hierarchical_cp has {} levels; at most {} are supported. Merge neighboring sizes.",
                       s.hierarchical_cp.size(), kMaxHierarchicalCpLevels);
  }
  // A double cannot overflow, and the message shows at most a few digits of it.
  const double product = std::accumulate(s.hierarchical_cp.begin(), s.hierarchical_cp.end(), 1.0, std::multiplies<>());
  const std::vector<int> parts = divisors(s.cp);
  const int inner = parts[parts.size() > 1 ? parts.size() - 2 : 0];
  return fmt::format("hierarchical_cp sizes {} multiply to {}, not to cp={}. {} hierarchical_cp out.",
                     fmt::join(s.hierarchical_cp, "*"), product, s.cp,
                     parts.size() > 2 ? fmt::format("Use {} {}, or leave", inner, s.cp / inner) : "Leave");
}

// Lists every size that is out of range.
std::string explain_range(const GridShape& s) {
  std::vector<std::string> wrong;
  const auto look = [&](const char* what, int size) {
    if (size < 1 || size > kMaxGridSize) wrong.push_back(fmt::format("{}={}", what, size));
  };
  look("world_size", s.world_size);
  look("tp", s.tp);
  look("pp", s.pp);
  look("cp", s.cp);
  look("ep", s.ep);
  if (s.etp) look("etp", *s.etp);
  if (s.vpp) look("vpp", *s.vpp);
  look("num_distributed_optimizer_instances", s.num_distributed_optimizer_instances);
  for (int size : s.hierarchical_cp) look("hierarchical_cp", size);
  return fmt::format("{}: a size is a whole number from 1 to {}.", list_in_words(wrong), kMaxGridSize);
}

}  // namespace

// One function per code; problem_codes() must not return a code that is missing here.
std::string explain(std::string_view code, const GridShape& shape) {
  if (code == "size_out_of_range") return explain_range(shape);
  if (code == "world_not_divisible") return explain_world(shape);
  if (code == "expert_grid") return explain_expert(shape);
  if (code == "vpp_needs_pp") return explain_vpp(shape);
  if (code == "order_misses_dimension") return explain_misses(shape);
  if (code == "order_unknown_token") return explain_order_token(shape);
  if (code == "order_repeats_dimension") {
    return fmt::format("order '{}' names an axis twice. Name each once, e.g. order=tp-cp-ep-dp-pp.", shape.order);
  }
  if (code == "order_not_pp_last" || code == "pp_groups_differ") return explain_pp_place(shape, code);
  if (code == "instances_vs_dp_cp" || code == "instances_vs_edp") return explain_instances(shape, code);
  if (code == "hcp_product" || code == "hcp_levels") return explain_hcp(shape, code);
  throw InternalError(fmt::format("no explanation for the grid problem '{}'", code));
}

}  // namespace megalith::layout
