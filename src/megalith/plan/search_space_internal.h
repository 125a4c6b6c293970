// What a search tries.
#pragma once

#include <vector>

#include "megalith/plan/search.h"

namespace megalith::plan {

enum class RecomputeChoice { kAsGiven, kNone, kSelective, kFull };

struct LayoutChoice {
  int tp = 1, cp = 1, pp = 1, ep = 1, etp = 1;
  int vpp = 1;
  int micro_batch = 1;
  RecomputeChoice recompute = RecomputeChoice::kNone;

  int dp(int gpus) const { return gpus / (tp * cp * pp); }
  // The request's arguments with these sizes, derived.
  config::TrainingArguments apply(const SearchRequest& request) const;
};

// Every set of sizes that divide what they cut, with the smallest micro-batch and the least recomputation; a few of
// them may still be refused by the layout.
std::vector<LayoutChoice> layout_choices(const SearchRequest& request);
// The same sizes with every micro-batch and recomputation.
std::vector<LayoutChoice> ways_of(const SearchRequest& request, LayoutChoice sizes);

}  // namespace megalith::plan
