#include "megalith/optim/optimizer_settings.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "megalith/base/error.h"

namespace megalith::optim {

namespace {

// Checks the names under which checkpoints store the state of a rule.
std::vector<std::string> name_problems(const UpdateRule& rule) {
  std::vector<std::string> problems;
  if (rule.name().empty()) problems.emplace_back("an update rule has an empty name; checkpoints need one");
  const std::vector<std::string> names = rule.state_names();
  for (const std::string& name : names) {
    const bool plain = !name.empty() && std::ranges::all_of(name, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    });
    if (!plain || name == "main")
      problems.push_back(
          fmt::format("the update rule {} names a state \"{}\"; use letters, digits and underscores, and not \"main\","
                      " which is the fp32 parameter",
                      rule.name(), name));
  }
  if (std::set(names.begin(), names.end()).size() < names.size())
    problems.push_back(fmt::format("the update rule {} names a state twice: {}", rule.name(), fmt::join(names, ", ")));
  return problems;
}

}  // namespace

// Collects everything, so that a run does not fail once per mistake.
void OptimizerSettings::validate() const {
  check<ConfigError>(rule != nullptr, "the optimizer has no update rule; set one, or leave the default (AdamW)");
  std::vector<std::string> problems = rule->problems();
  for (std::string& problem : name_problems(*rule)) problems.push_back(std::move(problem));
  const auto require = [&problems](bool good, const char* option, double value, const char* allowed) {
    require_setting(problems, good, option, value, allowed);
  };
  require(clip_grad >= 0 && std::isfinite(clip_grad), "max_grad_norm", clip_grad, "positive, or 0 for no clipping");
  require(offload_fraction >= 0 && offload_fraction <= 1, "optimizer_offload_fraction", offload_fraction,
          "between 0 and 1");
  for (const LrMultiplier& m : groups.multipliers)
    require(m.factor >= 0 && std::isfinite(m.factor), "a learning-rate multiplier", m.factor, "at least 0");
  check<ConfigError>(problems.empty(), "{}", fmt::join(problems, "; "));
}

}  // namespace megalith::optim
