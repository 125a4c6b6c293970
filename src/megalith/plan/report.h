// Plans as people and programs read them.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "megalith/plan/search.h"

namespace megalith::plan {

// Name and bytes of each part at the fullest moment; parts that are empty are left out.
std::vector<std::pair<std::string, double>> parts_of(const RankMemory& memory);

// A table with a line a stage. `cluster` may be nullptr: nothing is said about whether it fits.
std::string memory_text(const RunShape& run, const std::vector<RankMemory>& stages, const Cluster* cluster);
nlohmann::ordered_json memory_json(const RunShape& run, const std::vector<RankMemory>& stages, const Cluster* cluster);

// The candidates with their parts, what limits them, and the options of the first.
std::string search_text(const SearchRequest& request, const SearchResult& result);
nlohmann::ordered_json search_json(const SearchRequest& request, const SearchResult& result);

}  // namespace megalith::plan
