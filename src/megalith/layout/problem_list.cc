// One problem follows the subject on its line; several are listed under it.
#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/layout/problem_list_internal.h"

namespace megalith::layout {

void throw_if_any(std::string_view what, std::span<const std::string> problems) {
  if (problems.empty()) return;
  if (problems.size() == 1) throw ConfigError(fmt::format("{}: {}", what, problems[0]));
  std::string text = fmt::format("{} ({} problems):", what, problems.size());
  for (const std::string& problem : problems) text += "\n  - " + problem;
  throw ConfigError(text);
}

}  // namespace megalith::layout
