// One "this option gets this value", before types are looked at; made by the readers of words and files.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "megalith/config/option_table.h"
#include "megalith/config/parser.h"

namespace megalith::config {

struct Assignment {
  const Option* option = nullptr;
  bool negated = false;  // --no_x: false, without a value
  RawValue raw;
  std::string given;     // the name as written
  std::string spelling;  // the same with underscores and without dashes in front
  std::string origin;    // "command line" or file:line
};

// The words that belong to the table. Sets the targets of command options. Appends to `problems`, and to `unknown` what
// is to be said of names that nobody knows.
// A file given as the first word is not among `words` any more.
std::vector<Assignment> read_words(std::span<const std::string> words, std::span<const CommandOption> command_options,
                                   std::vector<std::string>& problems, std::vector<std::string>& unknown);

bool is_option_file(const std::string& word);
std::vector<Assignment> read_option_file(const std::string& path, std::vector<std::string>& problems);

// The members of additional_configs. Appends to `unknown` the names that nobody knows.
std::vector<Assignment> read_object(const JsonObject& object, std::vector<std::string>& unknown);

// "unknown option --lerning_rate; did you mean --learning_rate?", for names from words and files. `extra` are names
// of the command's own options.
std::string unknown_option(const std::string& given, const std::string& spelling, std::span<const std::string> extra);

// The value of name=value as a file would type it: null, a list in brackets, or the text itself.
RawValue raw_from_override(const std::string& text);

}  // namespace megalith::config
