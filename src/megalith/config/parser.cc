// Applies three sources to the defaults: a file, then the words, then additional_configs, which only fills what the
// others left open. Later sources win; within one source, two names of the same option must agree. A value passes three
// gates: its type (convert), values that Megalith refuses, and the option's range. Refused values are recorded rather
// than thrown, since a preview may still want to show them.
#include "megalith/config/parser.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <map>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/config/assignment_internal.h"
#include "megalith/config/own_options.h"

namespace megalith::config {
namespace {

// The origin of parse_named's options.
constexpr const char* kProgram = "program";

// Returns a value for a message, as it was written.
std::string shown(const RawValue& raw) {
  if (raw.kind == RawValue::Kind::kNull) return "null";
  if (raw.kind == RawValue::Kind::kBare) return "(nothing)";
  return fmt::format("\"{}\"", fmt::join(raw.words, " "));
}

// Applies assignments to one set of arguments; later ones win.
class Applier {
 public:
  Applier(ParseResult& result, std::vector<std::string>& problems) : result_(result), problems_(problems) {}

  // Applies all assignments of one source: within it, two spellings of one option must agree.
  void apply_source(const std::vector<Assignment>& assignments) {
    spelled_.clear();
    for (const Assignment& assignment : assignments) apply(assignment);
  }
  // Applies only the assignments that no earlier source has made.
  void apply_weakly(std::vector<Assignment> assignments) {
    const auto& uses = result_.report.uses;
    std::erase_if(assignments, [&](const Assignment& each) {
      return std::ranges::find(uses, each.option->name, &OptionUse::name) != uses.end();
    });
    apply_source(assignments);
  }

 private:
  // The last spelling of an option in the current source, and its value.
  struct Spelled {
    std::string given;
    std::string spelling;
    Value value;
  };

  void apply(const Assignment& assignment) {
    const Option& option = *assignment.option;
    const auto value = value_of(assignment);
    if (!value) return;
    // A refused value is checked before the range: "stage=ppo" deserves its reason, not a list of choices.
    const std::string refusal = refusal_of(option, *value);
    if (refusal.empty()) {
      if (const std::string problem = value_problem(option, *value); !problem.empty()) {
        problems_.push_back(
            fmt::format("{}{} is \"{}\"; {}", place(assignment), assignment.given, to_display(*value), problem));
        return;
      }
    }
    check_spelling(assignment, *value);
    record(assignment, *value);
    if (refusal.empty() && option.write) option.write(result_.args, *value);
  }

  // An option with bool_words takes a boolean as one of its words: bare and true mean the first, false the second.
  std::optional<Value> value_of(const Assignment& assignment) {
    if (assignment.negated) return Value(false);
    const Option& option = *assignment.option;
    RawValue raw = assignment.raw;
    if (!option.bool_words.empty()) {
      const auto flag = raw.words.size() == 1 ? parse_bool(raw.words.front())
                                              : std::optional<bool>(raw.kind == RawValue::Kind::kBare);
      if (flag && raw.kind != RawValue::Kind::kNull) raw = {RawValue::Kind::kWords, {option.bool_words[*flag ? 0 : 1]}};
    }
    std::string expected;
    auto value = convert(raw, option.type, option.optional, expected);
    if (!value)
      problems_.push_back(
          fmt::format("{}{} is {}; expected {}", place(assignment), assignment.given, shown(assignment.raw), expected));
    return value;
  }

  // --lr 1e-4 --lr 2e-4 is a correction, and the last wins; --lr 1e-4 --learning_rate 2e-4 is a mistake.
  void check_spelling(const Assignment& assignment, const Value& value) {
    if (assignment.negated) return;
    const auto [found, fresh] =
        spelled_.emplace(assignment.option, Spelled{assignment.given, assignment.spelling, value});
    if (fresh) return;
    if (found->second.spelling != assignment.spelling && found->second.value != value)
      problems_.push_back(fmt::format(
          "{}{} = {} and {} = {} are two names of one option with different values; keep one", place(assignment),
          found->second.given, to_display(found->second.value), assignment.given, to_display(value)));
    found->second = {assignment.given, assignment.spelling, value};
  }

  // The last occurrence replaces earlier ones, so that the report shows what is in force.
  void record(const Assignment& assignment, const Value& value) {
    const Option& option = *assignment.option;
    auto& uses = result_.report.uses;
    std::erase_if(uses, [&](const OptionUse& earlier) { return earlier.name == option.name; });
    uses.push_back(use_of(option, value, result_.args.dialect, assignment.given, assignment.origin));
  }

  // Returns "file:line: " for messages; words on the command line and options of a program need no place.
  static std::string place(const Assignment& assignment) {
    return assignment.origin == "command line" || assignment.origin == kProgram ? "" : assignment.origin + ": ";
  }

  ParseResult& result_;
  std::vector<std::string>& problems_;
  std::map<const Option*, Spelled> spelled_;
};

// Reads the assignments of one source; appends to `problems`, and to `unknown` the messages for unknown names.
using ReadSource =
    std::function<std::vector<Assignment>(std::vector<std::string>& problems, std::vector<std::string>& unknown)>;

// Applies the file, if there is one, and then `source`, which wins over it.
ParseResult parse_sources(Dialect dialect, const std::optional<std::string>& file, const ReadSource& source,
                          UnknownNames unknown) {
  ParseResult result{default_arguments(dialect), {}, {}};
  std::vector<std::string> problems;
  Applier applier(result, problems);
  if (file) applier.apply_source(read_option_file(*file, problems));
  std::vector<std::string> unknown_names;
  applier.apply_source(source(problems, unknown_names));
  std::vector<std::string> unknown_configs;
  // additional_configs is itself an option, known only after the words; unknown members are notes and not errors,
  // because the reference passes them on to the model.
  applier.apply_weakly(read_object(result.args.source.additional_configs, unknown_configs));
  if (unknown == UnknownNames::kRefuse) problems.insert(problems.end(), unknown_names.begin(), unknown_names.end());
  if (!problems.empty()) throw ConfigError(fmt::format("{}", fmt::join(problems, "\n")));

  if (result.args.pipeline.vpp == 1) result.args.pipeline.vpp.reset();  // one chunk per rank is not interleaving
  result.notes = result.report.notes();
  for (const std::string& name : unknown_names) result.notes.push_back("ignored: " + name);
  for (const std::string& name : unknown_configs)
    result.notes.push_back(fmt::format("additional_configs: {} is ignored: no option has that name", name));
  return result;
}

// A negated name counts as unknown, as in a file: no_x=True is not a way to write x=False.
std::vector<Assignment> named_assignments(std::span<const NamedValue> values, std::vector<std::string>& unknown) {
  std::vector<Assignment> assignments;
  for (const NamedValue& each : values) {
    const auto match = OptionTable::instance().find(each.name);
    if (match && !match->negated)
      assignments.push_back({match->option, false, each.value, each.name, each.name, kProgram});
    else
      unknown.push_back(unknown_option(each.name, each.name, {}));
  }
  return assignments;
}

}  // namespace

ParseResult parse_arguments(Dialect dialect, std::span<const std::string> words,
                            std::span<const CommandOption> command_options, UnknownNames unknown) {
  if (words.size() == 1 && words.front() == kAskForOwnOptions) throw OwnOptions(command_options);
  // The file comes first, since what is written after it wins.
  std::optional<std::string> file;
  if (!words.empty() && is_option_file(words.front())) {
    file = words.front();
    words = words.subspan(1);
  }
  const auto read = [&](std::vector<std::string>& problems, std::vector<std::string>& unknown_names) {
    return read_words(words, command_options, problems, unknown_names);
  };
  return parse_sources(dialect, file, read, unknown);
}

ParseResult parse_named(Dialect dialect, std::span<const NamedValue> values, const std::optional<std::string>& file) {
  check<ConfigError>(!file || is_option_file(*file),
                     "\"{}\" is not a file of options; its name must end in .yaml, .yml or .json", file.value_or(""));
  const auto read = [&](std::vector<std::string>&, std::vector<std::string>& unknown_names) {
    return named_assignments(values, unknown_names);
  };
  return parse_sources(dialect, file, read, UnknownNames::kRefuse);
}

}  // namespace megalith::config
