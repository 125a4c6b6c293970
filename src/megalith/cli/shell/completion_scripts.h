// Completion scripts, one per shell. They hold all names, so that no shell starts the program to complete a word.
#pragma once

#include <string>
#include <vector>

#include "megalith/cli/shell/command_shapes.h"

namespace megalith::cli {

// Return the script for `source <(megalith completion SHELL)`, or for the folder where the shell looks for it.
std::string bash_completion(const std::vector<CommandShape>& commands);
std::string zsh_completion(const std::vector<CommandShape>& commands);
std::string fish_completion(const std::vector<CommandShape>& commands);

// Returns the words in single quotes, in which no shell expands anything.
std::string single_quoted(const std::string& text);

// The value of one option name, whichever command has it.
struct OptionValue {
  std::vector<std::string> names;
  Completes kind;
  std::vector<std::string> choices;
};
// Returns the options of all commands that take a value, each name once.
std::vector<OptionValue> all_option_values(const std::vector<CommandShape>& commands);

}  // namespace megalith::cli
