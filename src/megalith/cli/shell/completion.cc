// `megalith completion SHELL`: writes the script that completes commands, options and their values.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "megalith/base/error.h"
#include "megalith/cli/shell/completion_scripts.h"

namespace megalith::cli {

namespace {

constexpr const char* kCompletionUsage = R"(megalith completion bash|zsh|fish

Writes the script that completes commands, options, their values and paths with the Tab key. For one shell:

  bash   source <(megalith completion bash)
  zsh    source <(megalith completion zsh)       # after compinit
  fish   megalith completion fish | source

For all further ones, add that line to ~/.bashrc, ~/.zshrc or ~/.config/fish/config.fish. `cmake --install` puts the
scripts where the shells look for them.
)";

}  // namespace

std::string single_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::vector<OptionValue> all_option_values(const std::vector<CommandShape>& commands) {
  std::vector<OptionValue> values;
  std::set<std::string> known;
  const auto add = [&](const OptionShape& option) {
    if (option.value == Completes::kSwitch) return;
    OptionValue value{{}, option.value, option.choices};
    // An option of a command that has the name of one in the table means the same kind of value.
    std::ranges::copy_if(option.names, std::back_inserter(value.names),
                         [&](const std::string& name) { return known.insert(name).second; });
    if (!value.names.empty()) values.push_back(std::move(value));
  };
  for (const RunOptions which : {RunOptions::kTrain, RunOptions::kPretrain})
    for (const OptionShape& option : run_option_shapes(which)) add(option);
  for (const CommandShape& shape : commands)
    for (const OptionShape& option : shape.own) add(option);
  return values;
}

int run_completion(Words words) {
  if (words.size() == 1 && words[0] == "--help") {
    write_stdout(kCompletionUsage);
    return kDone;
  }
  const std::string shell = words.empty() ? "" : words[0];
  const bool known = words.size() == 1 && (shell == "bash" || shell == "zsh" || shell == "fish");
  check<ConfigError>(known, "megalith completion takes the name of a shell: bash, zsh or fish; {} given",
                     words.empty() ? "nothing is" : fmt::format("\"{}\" is", fmt::join(words, " ")));
  const auto commands = command_shapes();
  write_stdout(shell == "bash"  ? bash_completion(commands)
               : shell == "zsh" ? zsh_completion(commands)
                                : fish_completion(commands));
  return kDone;
}

}  // namespace megalith::cli
