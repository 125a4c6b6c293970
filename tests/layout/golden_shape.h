// Reading golden parallel/*.json: configurations and lists that must be there.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "megalith/layout/grid_shape.h"
#include "tests/support/golden.h"

namespace megalith::layout {

// The member list. Without it the test is skipped, and it fails in the repository's own folder (support/golden.h).
inline std::vector<nlohmann::json> golden_list(const nlohmann::json& file, const char* member) {
  auto list = testing::golden_member(file, member).get<std::vector<nlohmann::json>>();
  if (list.empty()) testing::skip_without_golden(std::string("entry in \"") + member + "\" of this file");
  return list;
}

// Returns a member, or std::nullopt where it is absent or null.
template <typename T>
std::optional<T> optional_member(const nlohmann::json& object, const char* member) {
  if (!object.contains(member) || object.at(member).is_null()) return std::nullopt;
  return object.at(member).get<T>();
}

// world, tp, pp, cp, ep, order and the optional etp, vpp, instances, hcp of groups.json and rng.json.
inline GridShape golden_shape(const nlohmann::json& c) {
  GridShape shape;
  shape.world_size = c.at("world").get<int>();
  shape.tp = c.value("tp", 1);
  shape.pp = c.value("pp", 1);
  shape.cp = c.value("cp", 1);
  shape.ep = c.value("ep", 1);
  shape.etp = optional_member<int>(c, "etp");
  shape.vpp = optional_member<int>(c, "vpp");
  shape.order = c.value("order", shape.order);
  shape.num_distributed_optimizer_instances = c.value("instances", 1);
  shape.hierarchical_cp = optional_member<std::vector<int>>(c, "hcp").value_or(std::vector<int>{});
  return shape;
}

// The inputs of a case for SCOPED_TRACE, without its long results.
inline std::string golden_inputs(const nlohmann::json& c) {
  nlohmann::json inputs = c;
  for (const char* result : {"groups", "hashed", "table", "seeds", "stages", "updates", "walk"}) inputs.erase(result);
  return inputs.dump();
}

}  // namespace megalith::layout
