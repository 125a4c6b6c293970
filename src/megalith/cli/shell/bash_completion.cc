// bash: one function that finds the command and the option before the cursor. Lists of names are variables, so that
// commands share those of the table.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "megalith/cli/shell/completion_scripts.h"

namespace megalith::cli {

namespace {

// cur: the word to complete. before: the option whose value it is, with underscores. bash splits --name=value at the
// equals sign. An option that the user begins to write with dashes is completed with dashes.
constexpr const char* kBashFrame = R"(
_megalith() {
  local cur=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} own='' run='' words='' kind='' list=''
  COMPREPLY=()
  if [[ $cur == = ]]; then
    cur=''
  elif [[ $before == = ]]; then
    before=${COMP_WORDS[COMP_CWORD-2]}
  fi
  [[ $before == --* ]] && before=${before:2} && before=--${before//-/_}
  if [[ $COMP_CWORD -eq 1 ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$_megalith_commands --help --version" -- "$cur")
    return
  fi
  _megalith_command "${COMP_WORDS[1]}" "${COMP_WORDS[2]}"
  if [[ $words == list && $COMP_CWORD -eq 2 && $cur != -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$list" -- "$cur")
    return
  fi
  if [[ $cur == --* ]]; then
    local names="$own $run"
    [[ ${cur:2} == *-* && $cur != *_* ]] && names=${names//_/-}
    mapfile -t COMPREPLY < <(compgen -W "$names" -- "$cur")
    return
  fi
  _megalith_value "$before" || kind=$words
  case $kind in
    choices) mapfile -t COMPREPLY < <(compgen -W "$list" -- "$cur") ;;
    file) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    folder) compopt -o filenames 2>/dev/null; mapfile -t COMPREPLY < <(compgen -d -- "$cur") ;;
  esac
}
complete -F _megalith megalith
)";

std::string bash_names(const std::vector<OptionShape>& options) {
  std::string text;
  for (const OptionShape& option : options)
    for (const std::string& name : option.names) text += fmt::format("{}--{}", text.empty() ? "" : " ", name);
  return text;
}

const char* bash_kind(Completes kind) {
  switch (kind) {
    case Completes::kChoices:
      return "choices";
    case Completes::kFile:
      return "file";
    case Completes::kFolder:
      return "folder";
    case Completes::kNothing:
    case Completes::kSwitch:
      break;
  }
  return "none";
}

// _megalith_command: the options and words of a command.
std::string bash_commands(const std::vector<CommandShape>& commands) {
  std::string text = "_megalith_command() {\n  case \"$1 $2\" in\n";
  // Sub-commands come before their command, whose pattern also matches them.
  std::vector<CommandShape> longest_first = commands;
  std::ranges::stable_sort(longest_first, std::greater{}, [](const CommandShape& shape) { return shape.path.size(); });
  for (const CommandShape& shape : longest_first) {
    const std::string pattern = shape.path.size() == 2 ? fmt::format("'{} {}'", shape.path[0], shape.path[1])
                                                       : fmt::format("'{} '*", shape.path[0]);
    text += fmt::format("    {})\n      own={}\n", pattern, single_quoted(bash_names(shape.own)));
    if (shape.run_options != RunOptions::kNone)
      text += fmt::format("      run=$_megalith_run_{}\n", static_cast<int>(shape.run_options));
    if (shape.subcommands.empty())
      text += fmt::format("      words={}\n", bash_kind(shape.words));
    else
      text += fmt::format("      words=list list='{}'\n", fmt::join(shape.subcommands, " "));
    text += "      ;;\n";
  }
  return text + "  esac\n}\n";
}

std::string bash_values(const std::vector<CommandShape>& commands) {
  std::string text = "_megalith_value() {\n  case $1 in\n";
  for (const OptionValue& value : all_option_values(commands)) {
    text += fmt::format("    --{}) kind={}", fmt::join(value.names, "|--"), bash_kind(value.kind));
    if (value.kind == Completes::kChoices) text += fmt::format(" list='{}'", fmt::join(value.choices, " "));
    text += " ;;\n";
  }
  return text + "    *) return 1 ;;\n  esac\n}\n";
}

}  // namespace

std::string bash_completion(const std::vector<CommandShape>& commands) {
  std::string text = "# bash completion of megalith: source <(megalith completion bash)\n_megalith_commands='";
  std::set<RunOptions> used;
  for (const CommandShape& shape : commands) {
    if (shape.path.size() == 1) text += shape.path[0] + " ";
    used.insert(shape.run_options);
  }
  text += "'\n";
  for (const RunOptions which : used)
    if (which != RunOptions::kNone)
      text += fmt::format("_megalith_run_{}={}\n", static_cast<int>(which),
                          single_quoted(bash_names(run_option_shapes(which))));
  return text + bash_commands(commands) + bash_values(commands) + kBashFrame;
}

}  // namespace megalith::cli
