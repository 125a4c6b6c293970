// Declarations shared by the sub-commands of `megalith data`, which prepare .bin/.idx files and tokenizers. They run
// in one process without ranks; output appears only when it is complete.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "megalith/cli/command.h"
#include "megalith/config/parser.h"

namespace megalith::cli {

// The sub-commands. Each gets the words after its name and returns an exit code.
int data_tokenize(Words words);
int data_inspect(Words words);
int data_verify(Words words);
int data_merge(Words words);
int data_train_tokenizer(Words words);

// Parses the words after a sub-command: its options and, anywhere between them, words that belong to no option ("-" is
// one of these). Returns the latter. Throws ConfigError for unknown options.
std::vector<std::string> read_data_words(Words words, std::span<const config::CommandOption> options);

}  // namespace megalith::cli
