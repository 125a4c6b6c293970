// Finds runs with adapters (low-rank updates) that the planner cannot count.
#pragma once

#include <string>
#include <vector>

#include "megalith/plan/run_shape.h"

namespace megalith::plan {

// Returns every reason why a run with adapters cannot be planned: kinds of layers and targets whose updates are not
// counted. Empty for runs without adapters.
std::vector<std::string> adapter_problems(const RunShape& run);

}  // namespace megalith::plan
