// Enumerates the layouts that a search tries.
#pragma once

#include <vector>

#include "megalith/plan/search.h"

namespace megalith::plan {

// Returns every set of sizes that divide evenly, with the smallest micro-batch and the least recomputation; layout
// checks may still refuse a few of them.
std::vector<LayoutChoice> layout_choices(const SearchRequest& request);
// Returns the same sizes with every micro-batch and recomputation.
std::vector<LayoutChoice> ways_of(const SearchRequest& request, LayoutChoice sizes);

}  // namespace megalith::plan
