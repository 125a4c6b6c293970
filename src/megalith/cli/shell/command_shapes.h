// CommandShape: what completion and the manual page know about a command: its name, its words and its options. It is
// read from the tables of commands and options, so that neither text can drift from the program.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "megalith/cli/command.h"
#include "megalith/config/option_table.h"

namespace megalith::cli {

// The offer of the shell as the value of an option, or as a word without an option.
enum class Completes {
  kNothing,  // a number or a text of the user's own
  kSwitch,   // an option without a value
  kChoices,  // a few words
  kFile,
  kFolder,
};

// One option, by all its names.
struct OptionShape {
  std::vector<std::string> names;  // with underscores, without dashes in front; the first is the usual one
  std::string help;
  Completes value = Completes::kNothing;
  std::vector<std::string> choices;
};

// One command, or one sub-command of `data` or `preview`.
struct CommandShape {
  std::vector<std::string> path;  // {"data", "tokenize"}
  std::string summary;
  std::vector<OptionShape> own;  // options that are not in the table
  RunOptions run_options = RunOptions::kNone;
  Completes words = Completes::kNothing;  // words without an option name: `train run.yaml`
  std::vector<std::string> subcommands;   // if there are any, they are the only words
};

// Returns every command, each before its sub-commands, in the order of --help.
std::vector<CommandShape> command_shapes();

// Returns the options of the table that act in a command, in the order of the table.
std::vector<OptionShape> run_option_shapes(RunOptions which);

// Returns whether the value of an option, of the table or of a command, is a path.
Completes path_kind(std::string_view option);
// Returns all names that path_kind knows, for a test that each of them exists.
std::vector<std::string> path_options();

}  // namespace megalith::cli
