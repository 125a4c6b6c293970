// Renders plans as text for people and as JSON for programs. Texts use GiB and per cent; JSON has bytes, seconds and
// shares, unrounded, and its keys are stable.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "megalith/plan/search.h"

namespace megalith::plan {

// Returns name and bytes of each part at the fullest moment, without empty parts.
std::vector<std::pair<std::string, double>> parts_of(const RankMemory& memory);

// Returns a table with one line per stage and, with fp8, its share of the FLOPs. If `cluster` is nullptr, the text does
// not say whether the run fits.
std::string memory_text(const RunShape& run, const std::vector<RankMemory>& stages, const Cluster* cluster);
// The same as an object: layout, stages, fullest, peak, with fp8 fp8_share and, with a cluster, usable and fits.
nlohmann::ordered_json memory_json(const RunShape& run, const std::vector<RankMemory>& stages, const Cluster* cluster);

// Returns the candidates with their parts and limits, and the options of the first one.
std::string search_text(const SearchRequest& request, const SearchResult& result);
// The same as an object: gpus, gpu, possible, weighed, best and, if nothing fits, why_not and nearest.
nlohmann::ordered_json search_json(const SearchRequest& request, const SearchResult& result);

}  // namespace megalith::plan
