// zsh: as the script of bash, with the help texts beside the names.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <set>

#include "megalith/cli/shell/completion_scripts.h"

namespace megalith::cli {

namespace {

constexpr const char* kZshFrame = R"(
_megalith() {
  local before=${words[CURRENT-1]} kind='' free='' name
  local -a own run list subcommands dashed
  if [[ $PREFIX == --*=* ]]; then
    before=${PREFIX%%=*}
    compset -P '*='
  fi
  [[ $before == --* ]] && before=--${${before#--}//-/_}
  if (( CURRENT == 2 )); then
    _describe -t commands command _megalith_commands
    return
  fi
  _megalith_command "$words[2]" "$words[3]"
  if (( CURRENT == 3 && $#subcommands )) && [[ $PREFIX != -* ]]; then
    _describe -t commands command subcommands
    return
  fi
  if [[ $PREFIX == -* ]]; then
    if [[ ${PREFIX#--} == *-* && $PREFIX != *_* ]]; then
      for name in $own $run; do dashed+=("--${${${name%%:*}#--}//_/-}:${name#*:}"); done
      _describe -o -t options option dashed
    else
      _describe -o -t options option own -- run
    fi
    return
  fi
  _megalith_value "$before" || kind=$free
  case $kind in
    choices) compadd -- $list ;;
    file) _files ;;
    folder) _files -/ ;;
  esac
}
if [[ $funcstack[1] == _megalith ]]; then _megalith "$@"; else compdef _megalith megalith; fi
)";

// One line of help: up to its first sentence, since the shell shows names and texts in one row.
std::string zsh_entry(const std::string& name, const std::string& help) {
  return single_quoted(fmt::format("{}:{}", name, help.substr(0, help.find('\n'))));
}

std::string zsh_options(const std::vector<OptionShape>& options) {
  std::string text = "(";
  for (const OptionShape& option : options)
    for (const std::string& name : option.names) text += "\n  " + zsh_entry("--" + name, option.help);
  return text + ")";
}

const char* zsh_kind(Completes kind) {
  if (kind == Completes::kChoices) return "choices";
  if (kind == Completes::kFile) return "file";
  return kind == Completes::kFolder ? "folder" : "none";
}

std::string zsh_commands(const std::vector<CommandShape>& commands) {
  std::vector<CommandShape> longest_first = commands;
  std::ranges::stable_sort(longest_first, std::greater{}, [](const CommandShape& shape) { return shape.path.size(); });
  std::string text = "_megalith_command() {\n  case \"$1 $2\" in\n";
  for (const CommandShape& shape : longest_first) {
    const std::string pattern = shape.path.size() == 2 ? fmt::format("'{} {}'", shape.path[0], shape.path[1])
                                                       : fmt::format("'{} '*", shape.path[0]);
    text += fmt::format("    {})\n      own={}\n", pattern, zsh_options(shape.own));
    if (shape.run_options != RunOptions::kNone)
      text += fmt::format("      run=($_megalith_run_{})\n", static_cast<int>(shape.run_options));
    if (!shape.subcommands.empty()) text += fmt::format("      subcommands=({})\n", fmt::join(shape.subcommands, " "));
    text += fmt::format("      free={}\n      ;;\n", zsh_kind(shape.words));
  }
  return text + "  esac\n}\n";
}

std::string zsh_values(const std::vector<CommandShape>& commands) {
  std::string text = "_megalith_value() {\n  case $1 in\n";
  for (const OptionValue& value : all_option_values(commands)) {
    text += fmt::format("    --{}) kind={}", fmt::join(value.names, "|--"), zsh_kind(value.kind));
    if (value.kind == Completes::kChoices) text += fmt::format(" list=('{}')", fmt::join(value.choices, "' '"));
    text += " ;;\n";
  }
  return text + "    *) return 1 ;;\n  esac\n}\n";
}

}  // namespace

std::string zsh_completion(const std::vector<CommandShape>& commands) {
  std::string text = "#compdef megalith\n# zsh completion of megalith: source <(megalith completion zsh)\n";
  text += "typeset -ga _megalith_commands=(";
  std::set<RunOptions> used;
  for (const CommandShape& shape : commands) {
    if (shape.path.size() == 1) text += "\n  " + zsh_entry(shape.path[0], shape.summary);
    used.insert(shape.run_options);
  }
  text += ")\n";
  for (const RunOptions which : used)
    if (which != RunOptions::kNone)
      text += fmt::format("typeset -ga _megalith_run_{}={}\n", static_cast<int>(which),
                          zsh_options(run_option_shapes(which)));
  return text + zsh_commands(commands) + zsh_values(commands) + kZshFrame;
}

}  // namespace megalith::cli
