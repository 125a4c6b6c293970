// Shared by the split itself and the messages about it.
#pragma once

#include <string>
#include <vector>

#include "megalith/layout/layer_split.h"

namespace megalith::layout {

// Returns the number of layers of each global stage, as equal as possible; the even split where it divides. Needs at
// least as many layers (plus accounted parts) as stages.
std::vector<int> balanced_counts(const SplitRequest& request);
// Returns the parts of each stage: embedding first, mtp and loss last.
std::vector<std::string> types_of_counts(const std::vector<int>& counts, int mtp_layers);

}  // namespace megalith::layout
