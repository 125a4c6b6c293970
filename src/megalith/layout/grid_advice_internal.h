// Explains an impossible GridShape: the reason, and the nearest shapes that would work.
#pragma once

#include <string>
#include <string_view>

#include "megalith/layout/grid_shape.h"

namespace megalith::layout {

// Return whether the sizes of the grid divide world_size, so that dp (edp) exists. The sizes must be in range.
bool dense_fits(const GridShape& shape);
bool expert_fits(const GridShape& shape);

// Returns the message for a code that problem_codes(shape) gave.
std::string explain(std::string_view code, const GridShape& shape);

}  // namespace megalith::layout
