// Gives the tokens of a micro-batch their three coordinates, from those of the rows or from their media.
#pragma once

#include <optional>
#include <span>

#include "megalith/data/strip_internal.h"
#include "megalith/layout/media_positions.h"
#include "megalith/ops/sequence_layout.h"

namespace megalith::data {

// Returns the layout with coordinates if any row has them, or has media and `settings` say how they are counted. Rows
// of text take their positions on all axes; padding gets zeros. Coordinates restart where positions do. A row's own
// coordinates win.
ops::SequenceLayout with_coordinates(const ops::SequenceLayout& layout, std::span<const Strip> strips,
                                     const std::optional<layout::PositionSettings>& settings);

}  // namespace megalith::data
