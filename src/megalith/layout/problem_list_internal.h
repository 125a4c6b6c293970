// One ConfigError for a list of problems, in one form for the whole module.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace megalith::layout {

// "What: the problem" for one, "What (2 problems):\n  - …\n  - …" for several. `what` names the thing that is wrong,
// e.g. "impossible parallel layout". Returns without throwing when there is none.
void throw_if_any(std::string_view what, std::span<const std::string> problems);

}  // namespace megalith::layout
