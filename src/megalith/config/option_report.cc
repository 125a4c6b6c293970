// Tells what becomes of the options that a run was given: implemented, without effect, planned or refused. Defaults
// never count, so args.yaml of one run, which lists every option, can be given to the next without a single complaint.
#include "megalith/config/option_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "megalith/base/error.h"

namespace megalith::config {
namespace {

// Returns one line of the error that ends a run.
std::string refusal(const OptionUse& use) {
  return fmt::format("{} = {} ({}) is not supported: {}", use.given, use.value, use.origin, use.reason);
}

// Tokens and keys of accounts stay out of messages and logs, which people send to each other.
bool is_secret(std::string_view option) { return option.ends_with("_token") || option.ends_with("_api_key"); }

// All problems are shown together, so that a user mends them in one round.
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

// A preview accepts options that are only planned; a run must not train without what it was asked for.
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

// For lists, the first word that is refused decides.
std::string refusal_of(const Option& option, const Value& value) {
  for (const std::string& word : words_of(value)) {
    const auto refused = std::ranges::find(option.refused_values, word, &RefusedValue::value);
    if (refused != option.refused_values.end()) return refused->reason;
    const bool chosen = std::ranges::find(option.choices, word) != option.choices.end();
    if (!option.refused_others.empty() && !chosen) return option.refused_others;
  }
  return "";
}

// A refused value overrides the status of the option itself.
OptionUse use_of(const Option& option, const Value& value, Dialect dialect, std::string given, std::string origin) {
  const std::string refusal = refusal_of(option, value);
  return {std::move(given),
          option.name,
          is_secret(option.name) ? "(not shown)" : to_display(value),
          std::move(origin),
          refusal.empty() ? option.status : OptionStatus::kRefused,
          refusal.empty() ? option.reason : refusal,
          /*is_default=*/value == option.default_value(dialect)};
}

// For arguments that a program has filled in: there are no words, so every member that differs from its default
// counts.
OptionReport report_of(const TrainingArguments& args) {
  OptionReport report;
  for (const Option& option : OptionTable::instance().options()) {
    if (!option.read) continue;
    OptionUse use = use_of(option, option.read(args), args.dialect, option.name, "set by the program");
    if (!use.is_default) report.uses.push_back(std::move(use));
  }
  return report;
}

}  // namespace megalith::config
