// From words and files to TrainingArguments.
//
// The rules are those of HF's argument parser (docs/options.md, "How options are written"), for both dialects:
//   --name value, --name=value, name=value; underscores or dashes in a name, not both
//   bare booleans; --no_name for booleans that are on by default; lists of words; JSON objects or their files
//   a first word that ends in .yaml, .yml or .json is a file of options; what follows wins over it
// Unknown names, left-over words and wrong values are reported all together, each with what would be right.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "megalith/config/option_report.h"
#include "megalith/config/training_arguments.h"

namespace megalith::config {

// An option of one command only (--world-size, --json), written like the others. The target is set when it is given
// and outlives the call.
struct CommandOption {
  std::string name;  // with underscores
  std::string help;
  std::variant<bool*, std::optional<int64_t>*, std::optional<double>*, std::optional<std::string>*> target;
};

enum class UnknownNames { kRefuse, kIgnore };

struct ParseResult {
  TrainingArguments args;
  OptionReport report;
  std::vector<std::string> notes;  // what a user should know before the run starts; ignored names among them
};

// Reads the words behind the command. Throws ConfigError with every problem, one a line. Refused and planned options do
// not throw here: see OptionReport. `unknown` is about the words; in files unknown names are always refused.
ParseResult parse_arguments(Dialect dialect, std::span<const std::string> words,
                            std::span<const CommandOption> command_options = {},
                            UnknownNames unknown = UnknownNames::kRefuse);

}  // namespace megalith::config
