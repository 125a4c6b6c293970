// Texts generated from the option table: args.yaml, --help, docs/options.md, the stub for Python.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "megalith/config/parser.h"
#include "megalith/config/training_arguments.h"

namespace megalith::config {

// Returns every option with a consumer and its value, one per line. parse_arguments(args.dialect, {file}) gives `args`
// back.
std::string to_yaml(const TrainingArguments& args);

// The extent of a help text.
enum class HelpScope {
  kActing,  // those that do something, and a line that counts the others
  kAll,     // also those without effect and refused ones, each with its reason
};
// Returns the options of a dialect by topic, or one topic (any case, or the start of its name). `command_options` come
// first. Throws ConfigError with the list of topics for an unknown topic.
std::string help_text(Dialect dialect, const std::optional<std::string>& topic = std::nullopt,
                      std::span<const CommandOption> command_options = {}, HelpScope scope = HelpScope::kActing);

// Returns the text of docs/options.md.
std::string options_markdown();

// Returns the text of python/megalith/arguments.pyi, from which editors know the options of Python's TrainingArguments.
std::string python_stub();

}  // namespace megalith::config
