// fish: one `complete` line per command and per option name, each with the commands in which it holds.
#include <fmt/format.h>

#include <map>

#include "megalith/cli/shell/completion_scripts.h"

namespace megalith::cli {

namespace {

constexpr const char* kFishFrame = R"(# fish completion of megalith: megalith completion fish | source
function __megalith_in
    set -l before (commandline -opc)
    set -e before[1]
    contains -- "$before[1]" $argv; or contains -- "$before[1] $before[2]" $argv
end
function __megalith_at
    set -l before (commandline -opc)
    test (count $before) -eq (math 1 + (count $argv)); or return 1
    test (count $argv) -eq 0; or test "$before[2]" = "$argv[1]"
end
complete -c megalith -f
)";

// -f: no files. -r: a value is needed. -F: files after all.
std::string fish_value(const OptionShape& option) {
  switch (option.value) {
    case Completes::kSwitch:
      return "";
    case Completes::kChoices:
      return fmt::format(" -xa {}", single_quoted(fmt::format("{}", fmt::join(option.choices, " "))));
    case Completes::kFile:
      return " -rF";
    case Completes::kFolder:
      return " -xa '(__fish_complete_directories)'";
    case Completes::kNothing:
      break;
  }
  return " -x";
}

// `condition` holds in the commands that have these options.
std::string fish_options(const std::string& condition, const std::vector<OptionShape>& options) {
  std::string text;
  for (const OptionShape& option : options)
    for (const std::string& name : option.names)
      text += fmt::format("complete -c megalith -n {} -l {} -d {}{}\n", condition, name,
                          single_quoted(option.help.substr(0, option.help.find('\n'))), fish_value(option));
  return text;
}

std::string joined_path(const CommandShape& shape) { return fmt::format("{}", fmt::join(shape.path, " ")); }

}  // namespace

std::string fish_completion(const std::vector<CommandShape>& commands) {
  std::string text = kFishFrame;
  std::map<RunOptions, std::string> users;  // commands by the options that they take from the table
  for (const CommandShape& shape : commands) {
    const std::string path = joined_path(shape);
    // The command's name is completed where a command is expected, a sub-command's after its command.
    const std::string place = shape.path.size() == 1 ? "__megalith_at" : "'__megalith_at " + shape.path[0] + "'";
    text +=
        fmt::format("complete -c megalith -n {} -a {} -d {}\n", place, shape.path.back(), single_quoted(shape.summary));
    if (shape.path == std::vector<std::string>{"completion"})
      text += fmt::format("complete -c megalith -n '__megalith_at completion' -a '{}'\n",
                          fmt::join(shape.subcommands, " "));
    const std::string condition = single_quoted(fmt::format("__megalith_in \"{}\"", path));
    if (shape.subcommands.empty() && shape.words == Completes::kFile)
      text += fmt::format("complete -c megalith -n {} -F\n", condition);
    if (shape.subcommands.empty() && shape.words == Completes::kFolder)
      text += fmt::format("complete -c megalith -n {} -a '(__fish_complete_directories)'\n", condition);
    text += fish_options(condition, shape.own);
    if (shape.run_options != RunOptions::kNone) users[shape.run_options] += fmt::format(" \"{}\"", path);
  }
  for (const auto& [which, paths] : users)
    text += fish_options(single_quoted("__megalith_in" + paths), run_option_shapes(which));
  return text;
}

}  // namespace megalith::cli
