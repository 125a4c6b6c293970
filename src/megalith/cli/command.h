// The sub-commands of `megalith`: one function each, listed in one table. They only connect arguments to the library.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/run/exit_code.h"

namespace megalith::cli {

// The words after a command's name. They outlive the command, which may keep views of them.
using Words = std::span<const std::string>;

// Exit codes of all commands.
using run::kBadInput;
using run::kDone;
using run::kFailed;

// The options of the table (config/option_table.h) that a command understands, for completion and the manual.
enum class RunOptions {
  kNone,
  kNumberFormats,  // bf16, fp16 and seed alone
  kTrain,          // all of `train`
  kPretrain,       // all of `pretrain`
};

// One row of a table of commands.
struct Command {
  std::string name;
  std::string summary;      // one line for `megalith --help`
  int (*run)(Words words);  // gets the words after the name; returns an exit code
  RunOptions run_options = RunOptions::kNone;
  const std::vector<Command>& (*subcommands)() = nullptr;  // for `data` and `preview`: what their first word names
};

// Returns all commands in the order of --help.
const std::vector<Command>& commands();

// The commands. Each gets the words after its name and returns an exit code.
int run_init(Words words);
int run_train(Words words);  // also pretrain: the same with Megatron-LM's names and defaults
int run_pretrain(Words words);
int run_preview(Words words);  // groups | layers | batch | lr | pipeline | memory
int run_plan(Words words);
int run_rehearse(Words words);
int run_convert(Words words);
int run_distill(Words words);
int run_eval(Words words);
int run_score(Words words);
int run_generate(Words words);
int run_dashboard(Words words);
int run_tokenize(Words words);
int run_data(Words words);  // tokenize | inspect | verify | merge | train-tokenizer
int run_doctor(Words words);
int run_completion(Words words);  // bash | zsh | fish
int run_man(Words words);

// Returns the sub-commands of `preview` and `data`, in the order of their --help.
const std::vector<Command>& preview_topics();
const std::vector<Command>& data_commands();
// Returns the text of `megalith dashboard --help`. That command has a parser of its own, so its options are read here.
std::string_view dashboard_usage();

// Writes the output of a command to stdout, all at once. Throws DataError when that fails.
void write_stdout(std::string_view text);

// Says on stderr how to begin, for `megalith train` and `megalith pretrain` without words. Returns kBadInput.
int say_how_to_begin(std::string_view command);

// Runs `megalith words…`: finds the command, turns errors into a message on stderr and an exit code.
int run(Words words);

}  // namespace megalith::cli
