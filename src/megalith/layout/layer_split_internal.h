// What the split itself and the messages about it share.
#pragma once

#include <string>
#include <vector>

#include "megalith/layout/layer_split.h"

namespace megalith::layout {

// Layers of each global stage, as equal as possible; the even split where it divides. Needs at least as many layers
// (plus accounted parts) as stages.
std::vector<int> balanced_counts(const SplitRequest& request);
// The parts of each stage: embedding first, mtp and loss last.
std::vector<std::string> types_of_counts(const std::vector<int>& counts, int mtp_layers);

}  // namespace megalith::layout
