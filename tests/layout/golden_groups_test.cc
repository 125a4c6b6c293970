// The rank groups of every golden case (groups.json, made with Megatron-Core), by hash and by rank, and its refusals.
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/layout/rank_grid.h"
#include "tests/layout/golden_shape.h"
#include "tests/support/golden.h"

namespace megalith::layout {
namespace {

using nlohmann::json;
using Groups = std::vector<std::vector<int>>;

json groups_file() { return testing::golden_json("parallel/groups.json"); }

// The text that golden `fnv1a64` is taken of: "0,1;2,3".
std::string joined(const Groups& groups) {
  std::string text;
  for (size_t g = 0; g < groups.size(); ++g) {
    if (g > 0) text += ';';
    for (size_t i = 0; i < groups[g].size(); ++i) {
      if (i > 0) text += ',';
      text += std::to_string(groups[g][i]);
    }
  }
  return text;
}

void expect_hashed(const Groups& groups, const json& expected) {
  EXPECT_EQ(groups.size(), expected.at("num_groups").get<size_t>());
  std::set<size_t> sizes;
  for (const auto& group : groups) sizes.insert(group.size());
  EXPECT_EQ(sizes, expected.at("sizes").get<std::set<size_t>>());
  for (const auto& [index, ranks] : expected.at("samples").items()) {
    EXPECT_EQ(groups.at(std::stoul(index)), ranks.get<std::vector<int>>()) << "group " << index;
  }
  EXPECT_EQ(fmt::format("{:016x}", fnv1a64(joined(groups))), expected.at("fnv1a64").get<std::string>());
}

// The kinds of the case are exactly those the grid says it has.
void expect_same_kinds(const RankGrid& grid, const json& expected) {
  std::set<std::string> names;
  for (GroupKind kind : grid.kinds()) names.insert(std::string(name(kind)));
  std::set<std::string> golden;
  for (const auto& [kind, unused] : expected.items()) golden.insert(kind);
  EXPECT_EQ(names, golden);
}

TEST(GoldenGroups, groups_json_cases) {
  for (const json& c : golden_list(groups_file(), "cases")) {
    SCOPED_TRACE(golden_inputs(c));
    const RankGrid grid(golden_shape(c));
    if (c.contains("dp")) {
      EXPECT_EQ(grid.dp(), c.at("dp").get<int>());
    }
    if (c.contains("etp")) {
      EXPECT_EQ(grid.etp(), c.at("etp").get<int>());
    }
    if (c.contains("edp")) {
      EXPECT_EQ(grid.edp(), c.at("edp").get<int>());
    }
    ASSERT_TRUE(c.contains("groups") || c.contains("hashed")) << "the case holds no groups";
    const json& expected = c.contains("groups") ? c.at("groups") : c.at("hashed");
    expect_same_kinds(grid, expected);
    for (const auto& [kind_name, golden] : expected.items()) {
      SCOPED_TRACE(kind_name);
      const auto kind = group_kind(kind_name);
      ASSERT_TRUE(kind.has_value());
      if (c.contains("groups")) {
        EXPECT_EQ(grid.groups(*kind), golden.get<Groups>());
      } else {
        expect_hashed(grid.groups(*kind), golden);
      }
    }
  }
}

TEST(GoldenGroups, groups_json_creation_order) {
  std::vector<std::string> names;
  for (GroupKind kind : all_group_kinds()) {
    if (hcp_level(kind) < 0) names.emplace_back(name(kind));
  }
  const json file = groups_file();
  ASSERT_TRUE(file.contains("creation_order"));
  EXPECT_EQ(names, testing::golden_member(file, "creation_order").get<std::vector<std::string>>());
}

const std::map<std::string, std::function<int(const RankPlace&)>>& columns() {
  using P = RankPlace;
  static const std::map<std::string, std::function<int(const RankPlace&)>> table{
      {"tp_rank", &P::tp_rank},
      {"pp_rank", &P::pp_rank},
      {"cp_rank", &P::cp_rank},
      {"dp_rank", &P::dp_rank},
      {"dp_cp_rank", &P::dp_cp_rank},
      {"tp_cp_rank", &P::tp_cp_rank},
      {"ep_rank", &P::ep_rank},
      {"etp_rank", &P::etp_rank},
      {"tp_ep_rank", &P::tp_ep_rank},
      {"edp_rank", &P::edp_rank},
      {"tp_src_rank", &P::tp_src_rank},
      {"mp_src_rank", &P::mp_src_rank},
      {"dp_src_rank", &P::dp_src_rank},
      {"dp_cp_src_rank", &P::dp_cp_src_rank},
      {"ep_src_rank", &P::ep_src_rank},
      {"pp_first_rank", &P::pp_first_rank},
      {"pp_last_rank", &P::pp_last_rank},
      {"pp_next_rank", &P::pp_next_rank},
      {"pp_prev_rank", &P::pp_prev_rank},
      {"in_embedding_group", &P::in_embedding_group},
      {"in_position_embedding_group", &P::in_position_embedding_group},
      {"intra_dp_cp_rank", &P::intra_dp_cp_rank},
      {"intra_edp_rank", &P::intra_edp_rank},
      {"intra_dist_opt_rank", &P::intra_dist_opt_rank},
  };
  return table;
}

// A column `<kind>_rank` that has no field of its own is the place in the group of that kind.
int column_value(const RankGrid& grid, const std::string& column, int rank) {
  if (columns().contains(column)) return columns().at(column)(grid.place(rank));
  const auto kind = group_kind(column.substr(0, column.rfind("_rank")));
  EXPECT_TRUE(kind.has_value()) << "unknown column " << column;
  return kind ? grid.group_rank(*kind, rank).value_or(-1) : -1;
}

TEST(GoldenGroups, groups_json_per_rank) {
  for (const json& c : golden_list(groups_file(), "per_rank")) {
    SCOPED_TRACE(golden_inputs(c));
    const RankGrid grid(golden_shape(c));
    for (const auto& [column, golden] : c.at("table").items()) {
      std::vector<int> values;
      for (int rank = 0; rank < grid.world_size(); ++rank) values.push_back(column_value(grid, column, rank));
      EXPECT_EQ(values, golden.get<std::vector<int>>()) << column;
    }
  }
}

TEST(GoldenGroups, groups_json_invalid) {
  for (const json& c : golden_list(groups_file(), "invalid")) {
    SCOPED_TRACE(golden_inputs(c));
    const GridShape shape = golden_shape(c);
    std::vector<std::string> codes;
    for (const GridProblem& problem : problems(shape)) codes.emplace_back(problem.code);
    EXPECT_TRUE(std::find(codes.begin(), codes.end(), c.at("code").get<std::string>()) != codes.end())
        << "found: " << list_in_words(codes);
    EXPECT_THROW(RankGrid{shape}, ConfigError);
  }
}

}  // namespace
}  // namespace megalith::layout
