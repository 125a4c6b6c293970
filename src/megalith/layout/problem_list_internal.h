// Turns a list of problems into one ConfigError, in one form for the whole module.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace megalith::layout {

// Throws "What: the problem" for one, "What (2 problems):\n  - …\n  - …" for several. `what` names the thing that is
// wrong, e.g. "impossible parallel layout". Returns normally if the list is empty.
void throw_if_any(std::string_view what, std::span<const std::string> problems);

}  // namespace megalith::layout
