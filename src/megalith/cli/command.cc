// The table of commands and the way from words to one of them. Exit codes are those of run/exit_code.h: 0 done, 1
// failed, 2 bad input, so that a script can tell a mistake in its options from a failure.
#include "megalith/cli/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/base/text.h"

namespace megalith::cli {

namespace {

// To stdout when asked for, to stderr when a command is missing.
void print_usage(FILE* to) {
  fmt::print(to, "megalith {}: trains large language models in every parallel layout\n\nmegalith COMMAND [options]\n\n",
             MEGALITH_VERSION);
  for (const Command& command : commands()) fmt::print(to, "  {:<10} {}\n", command.name, command.summary);
  fmt::print(
      to,
      "\nmegalith COMMAND --help   the options of a command\nmegalith COMMAND --quiet   no progress, only warnings,"
      " errors and results\nmegalith --version\n");
}

// Suggests the nearest name.
[[noreturn]] void throw_unknown_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : commands()) names.push_back(command.name);
  const auto near = nearest(name, names);
  throw ConfigError(fmt::format("\"{}\" is not a command{}. Commands: {}.", name,
                                near.empty() ? "" : fmt::format(" (did you mean {}?)", near[0]), list_in_words(names)));
}

// Turns -h into --help, unless it is the value of the option before it.
std::vector<std::string> with_long_help(Words words) {
  std::vector<std::string> result(words.begin(), words.end());
  for (size_t i = 0; i < result.size(); ++i) {
    const bool is_value = i > 0 && result[i - 1].starts_with("--") && result[i - 1].find('=') == std::string::npos;
    if (result[i] == "-h" && !is_value) result[i] = "--help";
  }
  return result;
}

// Takes --quiet out of the words of a command that does not know it itself: progress and remarks are left out.
std::vector<std::string> without_quiet(std::vector<std::string> words) {
  if (std::erase(words, "--quiet") > 0) quiet_stderr();
  return words;
}

// The first word is the command; everything after it belongs to the command.
int dispatch(Words words) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    print_usage(words.empty() ? stderr : stdout);
    return words.empty() ? kBadInput : kDone;
  }
  if (words[0] == "--version" || words[0] == "version") {
    fmt::print("megalith {}\n", MEGALITH_VERSION);
    return kDone;
  }
  const auto command = std::ranges::find(commands(), words[0], &Command::name);
  if (command == commands().end()) throw_unknown_command(words[0]);
  const std::vector<std::string> rest = with_long_help(words.subspan(1));
  const bool is_run = command->name == "train" || command->name == "pretrain";
  return command->run(is_run ? rest : without_quiet(rest));
}

}  // namespace

// In the order of --help: training, models, planning, data, the machine.
const std::vector<Command>& commands() {
  static const std::vector<Command> table{
      {"init", "write a file of options for your model, data and machine", run_init},
      {"train", "fine-tune or pre-train; options of ROLL, HF and LLaMA-Factory", run_train, RunOptions::kTrain},
      {"pretrain", "pre-train; options of Megatron-LM", run_pretrain, RunOptions::kPretrain},
      {"convert", "a checkpoint into another number format, shard size or vocabulary", run_convert,
       RunOptions::kNumberFormats},
      {"eval", "loss, perplexity and accuracy of a model on data", run_eval, RunOptions::kTrain},
      {"score", "losses and logits of given tokens", run_score, RunOptions::kTrain},
      {"distill", "a teacher's likeliest tokens for the data of a run, as files that train reads in its place",
       run_distill, RunOptions::kTrain},
      {"generate", "continue a prompt", run_generate, RunOptions::kTrain},
      {"preview",
       "groups, layers, batch, learning rate, pipeline or memory of a run; needs no GPU, no weights, no ranks",
       run_preview, RunOptions::kTrain, preview_topics},
      {"dashboard", "runs in a browser, live or afterwards, or as one HTML file", run_dashboard},
      {"plan", "the fastest layouts of a model that fit on N GPUs, as options for train", run_plan, RunOptions::kTrain},
      {"rehearse", "one rank of a large run on this machine, beside what plan says; the other ranks are stand-ins",
       run_rehearse, RunOptions::kTrain},
      {"tokenize", "token ids from text or conversations, text from ids", run_tokenize},
      {"data", "prepare training data: tokenize a corpus, check its files, train a tokenizer", run_data,
       RunOptions::kNone, data_commands},
      {"doctor", "devices, backends, libraries; with --nproc N a check of a layout and its links", run_doctor,
       RunOptions::kTrain},
      {"completion", "the script that completes commands and options in bash, zsh or fish", run_completion},
      {"man", "the manual page, as man reads it", run_man},
  };
  return table;
}

// Output that is lost (a full disk, a closed pipe) must not look like success.
void write_stdout(std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  check<DataError>(written, "stdout cannot be written: {} bytes of output are lost", text.size());
}

int say_how_to_begin(std::string_view command) {
  const std::string help = fmt::format("megalith {} --help", command);
  fmt::print(stderr,
             "megalith {} needs to know what to train, and on what. To begin:\n\n"
             "  {:<26} asks for model and data, and writes a file of options\n"
             "  {:<26} trains with such a file; examples/*/tiny.yaml are small ones\n"
             "  {:<26} lists the options\n\n"
             "docs/tutorials/README.md leads from a first run on a laptop to many machines.\n",
             command, "megalith init", "megalith train run.yaml", help);
  return kBadInput;
}

int run(Words words) {
  try {
    return dispatch(words);
  } catch (const std::exception& error) {
    fmt::print(stderr, "megalith: {}\n", run::error_text(error));
    return run::exit_code_of(error);
  }
}

}  // namespace megalith::cli
