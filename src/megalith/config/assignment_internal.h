// An option and the value it is given, before types are checked; produced by the readers of words and files.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "megalith/config/option_table.h"
#include "megalith/config/parser.h"

namespace megalith::config {

// One occurrence of an option.
struct Assignment {
  const Option* option = nullptr;
  bool negated = false;  // --no_x: means false, without a value
  RawValue raw;
  std::string given;     // the name as written
  std::string spelling;  // the name with underscores and without leading dashes
  std::string origin;    // "command line" or file:line
};

// Returns the words that belong to the table, and sets the targets of command options. Appends to `problems`, and to
// `unknown` the messages for unknown names. A file given as the first word has already been removed from `words`.
std::vector<Assignment> read_words(std::span<const std::string> words, std::span<const CommandOption> command_options,
                                   std::vector<std::string>& problems, std::vector<std::string>& unknown);

// Returns whether a first word names a file of options (.yaml, .yml, .json).
bool is_option_file(const std::string& word);
// Reads a file of options. Appends to `problems`.
std::vector<Assignment> read_option_file(const std::string& path, std::vector<std::string>& problems);

// Returns the members of additional_configs. Appends unknown names to `unknown`.
std::vector<Assignment> read_object(const JsonObject& object, std::vector<std::string>& unknown);

// Returns "unknown option --lerning_rate; did you mean --learning_rate?", for names from words and files. `extra` are
// the names of the command's own options.
std::string unknown_option(const std::string& given, const std::string& spelling, std::span<const std::string> extra);

// Returns the value of name=value typed as in a file: null, a list in brackets, or the text itself.
RawValue raw_from_override(const std::string& text);

}  // namespace megalith::config
