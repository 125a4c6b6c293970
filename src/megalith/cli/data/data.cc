// `megalith data COMMAND`: prepares training data.
#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/cli/data/data_internal.h"
#include "megalith/cli/preview/preview_internal.h"

namespace megalith::cli {

namespace {

// Returns the names of the sub-commands, for messages.
std::vector<std::string> names() {
  std::vector<std::string> names;
  for (const Command& command : data_commands()) names.push_back(command.name);
  return names;
}

// The text of `megalith data --help`.
std::string list_of_commands() {
  std::string text = "megalith data COMMAND …: prepares training data\n\n";
  for (const Command& command : data_commands()) text += fmt::format("  {:<16} {}\n", command.name, command.summary);
  return text + "\nmegalith data COMMAND --help   the options of a command\n";
}

// Returns whether the option takes the next word as its value. A switch does so only for true and false.
bool takes_next(const config::CommandOption& option, const std::string& next) {
  if (!std::holds_alternative<bool*>(option.target)) return true;
  const std::string value = to_lower(next);
  return value == "true" || value == "false";
}

}  // namespace

// In the order of --help.
const std::vector<Command>& data_commands() {
  static const std::vector<Command> table{
      {"tokenize", "JSON lines or tables into .bin/.idx files", data_tokenize},
      {"inspect", "what a pair of files holds", data_inspect},
      {"verify", "check a pair of files, or the media of fine-tuning data", data_verify},
      {"merge", "several pairs of files into one", data_merge},
      {"train-tokenizer", "a byte-level BPE tokenizer from texts", data_train_tokenizer},
  };
  return table;
}

int run_data(Words words) {
  check<ConfigError>(!words.empty(), "megalith data needs a command: {}. For example: megalith data inspect PREFIX",
                     list_in_words(names()));
  const std::string& name = words[0];
  if (name == "--help" || name == "-h" || name == "help") {
    write_stdout(list_of_commands());
    return kDone;
  }
  const auto command = std::ranges::find(data_commands(), name, &Command::name);
  if (command == data_commands().end()) {
    const auto near = nearest(name, names(), 1);
    throw ConfigError(fmt::format("\"{}\" is not a command of megalith data{}. Commands: {}.", name,
                                  near.empty() ? "" : fmt::format("; did you mean {}?", near[0]),
                                  list_in_words(names())));
  }
  return command->run(words.subspan(1));
}

std::vector<std::string> read_data_words(Words words, std::span<const config::CommandOption> options) {
  std::vector<std::string> free_words, option_words;
  // The option table knows no free words, so they are picked out first: an option and its value stay together.
  for (size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--")) {
      free_words.push_back(words[i]);
      continue;
    }
    // Unknown options stay here, and parse_arguments() reports them.
    option_words.push_back(words[i]);
    std::string name = words[i].substr(2, words[i].find('=') - 2);
    std::ranges::replace(name, '-', '_');
    const auto option = std::ranges::find(options, name, &config::CommandOption::name);
    const bool has_value = words[i].find('=') != std::string::npos;
    if (option != options.end() && !has_value && i + 1 < words.size() && takes_next(*option, words[i + 1]))
      option_words.push_back(words[++i]);
  }
  config::parse_arguments(config::Dialect::kTrain, option_words, options).report.check_not_refused();
  return free_words;
}

}  // namespace megalith::cli
