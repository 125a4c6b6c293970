// Parses words and files into TrainingArguments.
//
// The rules are those of HF's argument parser (docs/options.md, "How options are written"), for both dialects:
//   --name value, --name=value, name=value; underscores or dashes in a name, not both
//   bare booleans; --no_name for booleans that are on by default; lists of words; JSON objects or their files
//   a first word that ends in .yaml, .yml or .json is a file of options; the words after it take precedence
// Unknown names, left-over words and wrong values are reported together, each with what would be right.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "megalith/config/option_report.h"
#include "megalith/config/training_arguments.h"
#include "megalith/config/value.h"

namespace megalith::config {

// An option of one command only (--world-size, --json), written like the others. The target is set if the option is
// given, and must outlive the call; a list gets one entry each time that it is given.
struct CommandOption {
  std::string name;  // with underscores
  std::string help;
  std::variant<bool*, std::optional<int64_t>*, std::optional<double>*, std::optional<std::string>*,
               std::vector<std::string>*>
      target;
};

// Treatment of words that name no option: an error, or a note.
enum class UnknownNames { kRefuse, kIgnore };

// The result of parsing. Command options are not part of it: they are written to their targets.
struct ParseResult {
  TrainingArguments args;
  OptionReport report;
  std::vector<std::string> notes;  // facts that a user should know before the run starts, including ignored names
};

// Parses the words after the command. Throws ConfigError with every problem, one per line. Refused and planned options
// do not throw here: see OptionReport. `unknown` applies to the words; unknown names in files are always rejected.
ParseResult parse_arguments(Dialect dialect, std::span<const std::string> words,
                            std::span<const CommandOption> command_options = {},
                            UnknownNames unknown = UnknownNames::kRefuse);

// An option that a program gives by its name, with underscores, and a value as it would be in a file.
struct NamedValue {
  std::string name;
  RawValue value;
};
// Parses options that a program gives by name. They win over those of `file`, if there is one. Throws like
// parse_arguments.
ParseResult parse_named(Dialect dialect, std::span<const NamedValue> values,
                        const std::optional<std::string>& file = std::nullopt);

}  // namespace megalith::config
