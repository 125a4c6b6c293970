#include "megalith/config/option_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "megalith/base/error.h"

namespace megalith::config {
namespace {

std::string refusal(const OptionUse& use) {
  return fmt::format("{} = {} ({}) is not supported: {}", use.given, use.value, use.origin, use.reason);
}

void throw_all(const std::vector<std::string>& problems) {
  if (!problems.empty()) throw ConfigError(fmt::format("{}", fmt::join(problems, "\n")));
}

}  // namespace

std::vector<const OptionUse*> OptionReport::refused() const {
  std::vector<const OptionUse*> found;
  for (const OptionUse& use : uses)
    if (use.status == OptionStatus::kRefused && !use.is_default) found.push_back(&use);
  return found;
}

std::vector<const OptionUse*> OptionReport::planned() const {
  std::vector<const OptionUse*> found;
  for (const OptionUse& use : uses)
    if (use.status == OptionStatus::kPlanned && !use.is_default) found.push_back(&use);
  return found;
}

std::vector<std::string> OptionReport::notes() const {
  std::vector<std::string> notes;
  for (const OptionUse& use : uses)
    if (use.status == OptionStatus::kNoEffect && !use.is_default)
      notes.push_back(fmt::format("{} = {} has no effect: {}", use.given, use.value, use.reason));
  return notes;
}

void OptionReport::check_not_refused() const {
  std::vector<std::string> problems;
  for (const OptionUse* use : refused()) problems.push_back(refusal(*use));
  throw_all(problems);
}

void OptionReport::check_runnable() const {
  std::vector<std::string> problems;
  for (const OptionUse* use : refused()) problems.push_back(refusal(*use));
  for (const OptionUse* use : planned())
    problems.push_back(
        fmt::format("{} = {} ({}) is understood, but the part of Megalith that acts on it ({}) is not "
                    "built yet; leave it out",
                    use->given, use->value, use->origin, use->reason));
  throw_all(problems);
}

}  // namespace megalith::config
