#include "megalith/optim/optimizer_settings.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "megalith/base/error.h"
#include "megalith/ops/update/stored_values.h"

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

at::ScalarType StateFormats::of(const std::string& state) const {
  const auto found = states.find(state);
  return found == states.end() ? at::kFloat : found->second;
}

at::ScalarType StateFormats::of_main(at::ScalarType parameter) const {
  if (parameter == at::kFloat) return at::kFloat;
  return main == at::kFloat && remainders && parameter == at::kBFloat16 ? at::kShort : main;
}

double StateFormats::state_bytes(const std::vector<std::string>& names) const {
  double bytes = 0;
  for (const std::string& state : names) bytes += ops::stored_bytes(of(state));
  return bytes;
}

double StateFormats::main_bytes(at::ScalarType parameter) const { return ops::stored_bytes(of_main(parameter)); }

std::vector<std::string> StateFormats::problems(const std::string& rule, const std::vector<std::string>& names) const {
  std::vector<std::string> found;
  if (main != at::kFloat && main != at::kHalf)
    found.push_back(fmt::format("main_params_dtype is {}; it must be fp32 or fp16", c10::toString(main)));
  for (const auto& [state, format] : states) {
    if (format != at::kFloat && format != at::kBFloat16 && !ops::has_scales(format))
      found.push_back(
          fmt::format("{}_dtype is {}; it must be fp32, bf16, fp16 or fp8 (e4m3)", state, c10::toString(format)));
    if (format != at::kFloat && std::ranges::find(names, state) == names.end())
      found.push_back(
          fmt::format("{0}_dtype is not fp32, but the update rule {1} has no state {0}; its states are: {2}", state,
                      rule, names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", "))));
  }
  return found;
}

// Collects everything, so that a run does not fail once per mistake.
void OptimizerSettings::validate() const {
  check<ConfigError>(rule != nullptr, "the optimizer has no update rule; set one, or leave the default (AdamW)");
  std::vector<std::string> problems = rule->problems();
  for (std::string& problem : name_problems(*rule)) problems.push_back(std::move(problem));
  std::vector<std::string> states = rule->state_names();
  if (muon) {
    for (std::string& problem : muon->problems()) problems.push_back(std::move(problem));
    if (offload_fraction > 0)
      problems.emplace_back(
          "optimizer muon works with whole matrices on the device, so optimizer_cpu_offload cannot"
          " move its state to the host; leave it out, or use optimizer adam");
    for (const std::string& state : Muon::state_names())
      if (std::ranges::find(states, state) == states.end()) states.push_back(state);
  }
  for (std::string& problem : formats.problems(name(), states)) problems.push_back(std::move(problem));
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
