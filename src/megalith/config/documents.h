// Texts made from the option table: args.yaml, --help, docs/options.md.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "megalith/config/parser.h"
#include "megalith/config/training_arguments.h"

namespace megalith::config {

// Every option with a consumer and its value, one a line. parse_arguments(args.dialect, {file}) gives `args` back.
std::string to_yaml(const TrainingArguments& args);

// All options of a dialect by topic, or one topic (any case, or the start of its name); ConfigError with the list of
// topics when there is no such one. `command_options` come first.
std::string help_text(Dialect dialect, const std::optional<std::string>& topic = std::nullopt,
                      std::span<const CommandOption> command_options = {});

// docs/options.md.
std::string options_markdown();

}  // namespace megalith::config
