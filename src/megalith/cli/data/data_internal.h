// What the sub-commands of `megalith data` share.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "megalith/cli/command.h"
#include "megalith/config/parser.h"

namespace megalith::cli {

int data_tokenize(Words words);
int data_inspect(Words words);
int data_verify(Words words);
int data_merge(Words words);
int data_train_tokenizer(Words words);

// Reads the words behind a sub-command: its options, written like all others, and, in any place between them, the words
// that belong to none ("-" is one of these). Returns the latter. Throws ConfigError for what is unknown.
std::vector<std::string> read_data_words(Words words, std::span<const config::CommandOption> options);

}  // namespace megalith::cli
