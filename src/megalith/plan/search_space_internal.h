// What a search tries.
#pragma once

#include <vector>

#include "megalith/plan/search.h"

namespace megalith::plan {

// Every set of sizes that divide what they cut, with the smallest micro-batch and the least recomputation; a few of
// them may still be refused by the layout.
std::vector<LayoutChoice> layout_choices(const SearchRequest& request);
// The same sizes with every micro-batch and recomputation.
std::vector<LayoutChoice> ways_of(const SearchRequest& request, LayoutChoice sizes);

}  // namespace megalith::plan
