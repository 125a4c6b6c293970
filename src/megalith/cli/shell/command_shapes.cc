// Reads the tables. A command's own options come from the command itself (config/own_options.h); those of `dashboard`,
// which parses its words alone, from its usage.
#include "megalith/cli/shell/command_shapes.h"

#include <algorithm>
#include <array>
#include <variant>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/config/own_options.h"

namespace megalith::cli {

namespace {

using config::Option;
using config::ValueType;

// Options whose values are paths. The types of the table do not say it: to the parser a path is a text.
constexpr std::array kFileOptions{"additional_configs",
                                  "audio",
                                  "data_args_path",
                                  "dataset",
                                  "deepspeed",
                                  "eval_dataset",
                                  "gpu",
                                  "image",
                                  "input",
                                  "merge_file",
                                  "nccl_communicator_config_path",
                                  "output",
                                  "per_split_data_args_path",
                                  "static",
                                  "tokenizer_model",
                                  "vocab_file",
                                  "data",
                                  "data_path",
                                  "train_data_path",
                                  "valid_data_path",
                                  "test_data_path"};
constexpr std::array kFolderOptions{"adapter_folder",
                                    "adapter_name_or_path",
                                    "adapter_path",
                                    "checkpoint_path",
                                    "config_path",
                                    "data_cache_path",
                                    "dataset_dir",
                                    "load",
                                    "log_dir",
                                    "logging_dir",
                                    "merge_adapter",
                                    "model",
                                    "model_name_or_path",
                                    "non_persistent_global_ckpt_dir",
                                    "output_dir",
                                    "output_path",
                                    "pretrained_checkpoint",
                                    "ref_model",
                                    "ref_model_adapters",
                                    "resume_from_checkpoint",
                                    "teacher_logits_path",
                                    "teacher_model_name_or_path",
                                    "tokenized_path",
                                    "tokenizer"};

// Free words: files for the commands that begin with one, run folders for `dashboard`.
Completes words_of_command(const std::string& name, const std::string& subcommand) {
  if (name == "dashboard") return Completes::kFolder;
  if (name == "train" || name == "pretrain" || name == "eval" || name == "data") return Completes::kFile;
  if (name == "preview" && !subcommand.empty()) return Completes::kFile;
  return name == "plan" || name == "completion" ? Completes::kFile : Completes::kNothing;
}

OptionShape own_shape(const config::CommandOption& option) {
  OptionShape shape{{option.name}, option.help, path_kind(option.name), {}};
  if (std::holds_alternative<bool*>(option.target)) shape.value = Completes::kSwitch;
  return shape;
}

// "  --port N     default 0: any free port" in a usage, with a name for the value or without.
std::vector<OptionShape> shapes_in_usage(std::string_view usage) {
  std::vector<OptionShape> shapes;
  for (const std::string& line : split(usage, '\n')) {
    if (!line.starts_with("  --")) continue;
    const size_t name_end = std::min(line.find(' ', 4), line.size());
    const size_t gap = std::min(line.find("  ", name_end), line.size());
    OptionShape shape{{line.substr(4, name_end - 4)}, std::string(trim(line.substr(gap))), Completes::kNothing, {}};
    shape.value = name_end == gap ? Completes::kSwitch : path_kind(shape.names.front());
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

// Runs the command with the word that asks for its options: nothing but the parser runs.
std::vector<OptionShape> own_options(const Command& command) {
  if (command.name == "dashboard") return shapes_in_usage(dashboard_usage());
  const std::vector<std::string> words{std::string(config::kAskForOwnOptions)};
  try {
    command.run(words);
  } catch (const config::OwnOptions& answer) {
    std::vector<OptionShape> shapes;
    for (const config::CommandOption& option : answer.options()) shapes.push_back(own_shape(option));
    // `megalith` itself takes it for the commands that do not (command.cc).
    if (std::ranges::none_of(answer.options(), [](const auto& option) { return option.name == "quiet"; }))
      shapes.push_back({{"quiet"}, "no progress, only warnings, errors and results", Completes::kSwitch, {}});
    return shapes;
  }
  throw InternalError("megalith " + command.name + " has not said which options it has");
}

bool is_listed(const Option& option, RunOptions which) {
  if (option.status != config::OptionStatus::kImplemented) return false;
  if (which == RunOptions::kNumberFormats)
    return option.name == "bf16" || option.name == "fp16" || option.name == "seed";
  return which == RunOptions::kPretrain ? option.in_pretrain : option.in_train;
}

OptionShape table_shape(const Option& option) {
  OptionShape shape{{option.name}, option.help, path_kind(option.name), option.choices};
  shape.names.insert(shape.names.end(), option.aliases.begin(), option.aliases.end());
  if (option.type == ValueType::kBool)
    shape.value = Completes::kSwitch;
  else if (!option.choices.empty())
    shape.value = Completes::kChoices;
  return shape;
}

// `completion` and `man` have no parser, and a command with sub-commands leaves its options to them.
bool has_own_options(const Command& command) {
  return command.subcommands == nullptr && command.name != "completion" && command.name != "man";
}

}  // namespace

Completes path_kind(std::string_view option) {
  if (std::ranges::find(kFileOptions, option) != kFileOptions.end()) return Completes::kFile;
  if (std::ranges::find(kFolderOptions, option) != kFolderOptions.end()) return Completes::kFolder;
  return Completes::kNothing;
}

std::vector<std::string> path_options() {
  std::vector<std::string> names(kFileOptions.begin(), kFileOptions.end());
  names.insert(names.end(), kFolderOptions.begin(), kFolderOptions.end());
  return names;
}

std::vector<CommandShape> command_shapes() {
  std::vector<CommandShape> shapes;
  for (const Command& command : commands()) {
    CommandShape shape{.path = {command.name}, .summary = command.summary, .words = words_of_command(command.name, "")};
    if (has_own_options(command)) {
      shape.own = own_options(command);
      shape.run_options = command.run_options;
    }
    if (command.name == "completion") shape.subcommands = {"bash", "zsh", "fish"};
    const size_t at = shapes.size();
    shapes.push_back(std::move(shape));
    if (command.subcommands == nullptr) continue;
    for (const Command& sub : command.subcommands()) {
      shapes[at].subcommands.push_back(sub.name);
      shapes.push_back({.path = {command.name, sub.name},
                        .summary = sub.summary,
                        .own = own_options(sub),
                        .run_options = sub.run_options,
                        .words = words_of_command(command.name, sub.name)});
    }
  }
  return shapes;
}

std::vector<OptionShape> run_option_shapes(RunOptions which) {
  std::vector<OptionShape> shapes;
  if (which == RunOptions::kNone) return shapes;
  for (const Option& option : config::OptionTable::instance().options())
    if (is_listed(option, which)) shapes.push_back(table_shape(option));
  return shapes;
}

}  // namespace megalith::cli
