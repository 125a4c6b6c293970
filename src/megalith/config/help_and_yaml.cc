// Everything that people read about options is generated from the table, so it cannot drift from the program. A test
// compares docs/options.md with options_markdown().
//
// Four forms of one row:
//   --help       --names <type> [default] (status), and the meaning under it
//   options.md   | `name`, `alias` | type | train / pretrain default | status | meaning |
//   args.yaml    name: value
//   the stub     name: type = …, and the meaning
#include "megalith/config/help_and_yaml.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/config/option_table.h"

namespace megalith::config {
namespace {

// The head of docs/options.md.
constexpr const char* kHowOptionsAreWritten = R"(# Options

Generated from the option table in `src/megalith/config`; do not edit. `MEGALITH_UPDATE_DOCS=1 ctest -R Documents` updates it.

## How options are written

`megalith train` has the names and defaults of ROLL's and Hugging Face's TrainingArguments and of LLaMA-Factory,
`megalith pretrain` those of Megatron-LM. Both accept every name below; where defaults differ both are given, train first.

- `--name value`, `--name=value` or `name=value`. Underscores may all be written as dashes (`--tensor-model-parallel-size`).
  Names are case-sensitive and not abbreviated.
- Booleans: bare `--bf16` is true; a value is yes, true, t, y, 1 or no, false, f, n, 0 in any case. A bare boolean takes
  the next word as its value unless it starts with a dash. Booleans that are true by default also have `--no_name`.
- Lists take several words: `--data_path 0.3 a 0.7 b`. Comma lists are one word: `--dataset a,b`.
- JSON options take `'{"key": 1}'` or the path of a JSON file; inside quotes on the command line "true", "8" and "0.5"
  become bool, int and float.
- Whole numbers are not written as 1e3 or 1.0. `None` is an ordinary word.
- The last occurrence wins. Two different names of one option with different values are an error.
- The first word may be a `.yaml`, `.yml` or `.json` file of `name: value`; null means none; options after it win over it.
- Unknown options are an error that suggests the nearest; the variable ALLOW_EXTRA_ARGS of LLaMA-Factory is not honored.
- `output_dir/args.yaml` holds every effective option and can be given as such a file.

## What the marks mean

- **implemented**: it does what it says.
- **planned**: read, checked and recorded; the named part of Megalith that acts on it is not built yet, and a run refuses
  to start with it.
- **no effect**: accepted; a note says so when its value is not the default.
- **refused**: any value but the default stops the run with the reason.
)";

// Returns the choices in place of the type where there are any; the bars are escaped for a table cell.
std::string type_of(const Option& option) {
  const std::string base = option.choices.empty() || option.type == ValueType::kBool
                               ? type_name(option.type)
                               : fmt::format("{}", fmt::join(option.choices, " \\| "));
  return option.optional ? base + ", optional" : base;
}

// One default, or "train / pretrain" if they differ.
std::string default_of(const Option& option) {
  const auto show = [](const Value& value) {
    const std::string text = to_display(value);
    return text.empty() ? std::string("–") : text;
  };
  const std::string train = show(option.train_default);
  const std::string pretrain = show(option.pretrain_default);
  return train == pretrain ? train : train + " / " + pretrain;
}

// Returns aliases and negations; "--no_x" of a default-true bool follows from a rule and is not listed.
std::vector<std::string> other_names(const Option& option) {
  std::vector<std::string> names = option.aliases;
  for (const std::string& negation : option.negations) names.push_back(negation + " (false)");
  return names;
}

// Returns the mark of the table; the reasons of `no effect` and `refused` are part of the meaning instead.
std::string status_of(const Option& option) {
  switch (option.status) {
    case OptionStatus::kImplemented:
      return "implemented";
    case OptionStatus::kPlanned:
      return "planned: " + option.reason;
    case OptionStatus::kNoEffect:
      return "no effect";
    case OptionStatus::kRefused:
      return "refused";
  }
  return "";
}

// Returns what the option is for; for options without a consumer, why they have none.
std::string meaning_of(const Option& option) {
  std::string text = option.help;
  const bool explains = option.status == OptionStatus::kNoEffect || option.status == OptionStatus::kRefused;
  if (explains) text += (text.empty() ? "" : "; ") + option.reason;
  // Values with the same reason are listed together, in the order of the table.
  for (size_t i = 0; i < option.refused_values.size();) {
    std::vector<std::string> values;
    const std::string& reason = option.refused_values[i].reason;
    for (; i < option.refused_values.size() && option.refused_values[i].reason == reason; ++i)
      values.push_back(option.refused_values[i].value);
    text += fmt::format("; refused {}: {}", fmt::join(values, ", "), reason);
  }
  if (!option.refused_others.empty()) text += "; others refused: " + option.refused_others;
  return text;
}

std::string markdown_row(const Option& option) {
  std::string name = fmt::format("`{}`", option.name);
  for (const std::string& other : other_names(option)) name += fmt::format(", `{}`", other);
  std::string meaning = meaning_of(option);
  // A bar would end the cell.
  for (size_t at = 0; (at = meaning.find('|', at)) != std::string::npos; at += 2) meaning.insert(at, "\\");
  return fmt::format("| {} | {} | {} | {} | {} |\n", name, type_of(option), default_of(option), status_of(option),
                     meaning);
}

// Spells names as the dialect does: with underscores for train, with dashes for pretrain.
std::string help_entry(const Option& option, Dialect dialect) {
  const char separator = dialect == Dialect::kPretrain ? '-' : '_';
  const auto flag = [separator](std::string name) {
    std::ranges::replace(name, '_', separator);
    return "--" + name;
  };
  std::string names = flag(option.name);
  for (const std::string& alias : option.aliases) names += ", " + flag(alias);
  std::string kind = option.choices.empty() || option.type == ValueType::kBool
                         ? type_name(option.type)
                         : fmt::format("{}", fmt::join(option.choices, "|"));
  return fmt::format("  {} <{}> [{}] ({})\n      {}\n", names, kind, to_display(option.default_value(dialect)),
                     status_of(option), meaning_of(option));
}

// --help is limited to the names that belong to the dialect; the parser still accepts all of them.
bool belongs_to(const Option& option, Dialect dialect) {
  return dialect == Dialect::kTrain ? option.in_train : option.in_pretrain;
}

bool acts(const Option& option) {
  return option.status == OptionStatus::kImplemented || option.status == OptionStatus::kPlanned;
}

// Returns the topics that start with the given word in any case; `--help pipe` finds "Pipeline".
std::vector<std::string> chosen_topics(const std::optional<std::string>& topic) {
  const std::vector<std::string> topics = OptionTable::instance().topics();
  if (!topic) return topics;
  std::vector<std::string> chosen;
  for (const std::string& candidate : topics)
    if (to_lower(candidate).starts_with(to_lower(*topic))) chosen.push_back(candidate);
  check<ConfigError>(!chosen.empty(), "there is no help topic \"{}\"; topics: {}", *topic, list_in_words(topics, 64));
  return chosen;
}

// The stub file of Python's TrainingArguments, up to its options and between its two lists of them.
constexpr const char* kStubHead =
    R"(# Generated from the option table in src/megalith/config; do not edit. `make docs` writes it again.
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal

class TrainingArguments:
    """The options of a run, by the names of docs/options.md. An option that is not given has its default."""

    def __init__(
        self,
        *,
)";

constexpr const char* kStubMethods = R"(    ) -> None: ...
    @classmethod
    def from_file(cls, path: str | PathLike[str], **options: Any) -> TrainingArguments:
        """Reads a file of options, as `megalith train FILE` does; options that are given win over it."""
    def given(self) -> dict[str, Any]:
        """Returns the options that were given, under the names that were used."""
    def to_dict(self) -> dict[str, Any]:
        """Returns every option with a value, defaults included."""
    def to_json_string(self) -> str:
        """Returns to_dict() as JSON."""
    def to_yaml(self) -> str:
        """Returns every option as the text of a file that from_file() and `megalith train` read."""

)";

// Text in Python's quotes.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

// Returns the union of the values that are allowed where an option takes only some words.
std::string literal_of(const Option& option) {
  std::vector<std::string> words;
  for (const std::string& choice : option.choices) words.push_back(quoted(choice));
  return fmt::format("Literal[{}]", fmt::join(words, ", "));
}

std::string python_type(const Option& option) {
  const std::string text = option.choices.empty() ? "str" : literal_of(option);
  switch (option.type) {
    case ValueType::kBool:
      return "bool";
    case ValueType::kInt:
      return "int";
    case ValueType::kFloat:
      return "float";
    case ValueType::kText:
      return option.bool_words.empty() ? text : text + " | bool";
    case ValueType::kTextList:
      return fmt::format("Sequence[{}]", text);
    case ValueType::kCommaList:
      return fmt::format("str | Sequence[{}]", text);
    case ValueType::kIntList:
      return "Sequence[int]";
    case ValueType::kFloatList:
      return "Sequence[float]";
    case ValueType::kDict:
      return "Mapping[str, Any] | str";
  }
  return "Any";
}

std::string type_of_option(const Option& option) {
  return option.optional ? python_type(option) + " | None" : python_type(option);
}

// Returns the help text as one line of a docstring.
std::string docstring(const Option& option) {
  std::string text = option.help;
  if (option.status != OptionStatus::kImplemented) {
    if (!text.empty()) text += "; ";
    text += fmt::format("{}: {}", to_string(option.status), option.reason);
  }
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') escaped += '\\';
    escaped += c == '"' ? '\'' : c;
  }
  return escaped;
}

}  // namespace

// Only options with a member are written: the others have nothing to reproduce.
std::string to_yaml(const TrainingArguments& args) {
  std::string text = fmt::format("# Every effective option of `megalith {}`; give this file as its first argument.\n",
                                 args.dialect == Dialect::kTrain ? "train" : "pretrain");
  std::string topic;
  for (const Option& option : OptionTable::instance().options()) {
    if (!option.read) continue;
    if (option.topic != topic) text += fmt::format("\n# {}\n", topic = option.topic);
    text += fmt::format("{}: {}\n", option.name, to_json_text(option.read(args)));
  }
  return text;
}

// The command's own options come first, and not at all when a topic is asked for.
std::string help_text(Dialect dialect, const std::optional<std::string>& topic,
                      std::span<const CommandOption> command_options, HelpScope scope) {
  std::string text;
  int left_out = 0;
  if (!topic && !command_options.empty()) {
    text += "This command\n";
    for (const CommandOption& option : command_options)
      text += fmt::format("  --{}\n      {}\n", option.name, option.help);
    text += "\n";
  }
  for (const std::string& name : chosen_topics(topic)) {
    std::string entries;
    for (const Option& option : OptionTable::instance().options()) {
      if (option.topic != name || !belongs_to(option, dialect)) continue;
      if (scope == HelpScope::kAll || acts(option))
        entries += help_entry(option, dialect);
      else
        ++left_out;
    }
    if (!entries.empty()) text += fmt::format("{}\n{}\n", name, entries);
  }
  if (left_out > 0)
    text += fmt::format("{} more options are accepted without effect or refused: megalith {} --help_all\n", left_out,
                        dialect == Dialect::kTrain ? "train" : "pretrain");
  return text;
}

std::string options_markdown() {
  const OptionTable& table = OptionTable::instance();
  std::map<OptionStatus, int> counts;
  for (const Option& option : table.options()) ++counts[option.status];
  std::string text = kHowOptionsAreWritten;
  text += fmt::format("\n{} options: {} implemented, {} planned, {} without effect, {} refused.\n",
                      table.options().size(), counts[OptionStatus::kImplemented], counts[OptionStatus::kPlanned],
                      counts[OptionStatus::kNoEffect], counts[OptionStatus::kRefused]);
  for (const std::string& topic : table.topics()) {
    text += fmt::format("\n## {}\n\n| option | type | default | status | meaning |\n|---|---|---|---|---|\n", topic);
    for (const Option& option : table.options())
      if (option.topic == topic) text += markdown_row(option);
  }
  return text;
}

// Options are listed twice: as arguments, which editors complete, and as attributes with their meaning.
std::string python_stub() {
  std::string text = kStubHead;
  for (const Option& option : OptionTable::instance().options()) {
    const std::string type = type_of_option(option);
    text += fmt::format("        {}: {} = ...,\n", option.name, type);
    for (const std::string& alias : option.aliases) text += fmt::format("        {}: {} = ...,\n", alias, type);
  }
  text += kStubMethods;
  for (const Option& option : OptionTable::instance().options()) {
    text += fmt::format("    {}: {}\n", option.name, type_of_option(option));
    if (const std::string words = docstring(option); !words.empty()) text += fmt::format("    \"\"\"{}\"\"\"\n", words);
  }
  text += "\nSeq2SeqTrainingArguments = TrainingArguments\n";
  return text;
}

}  // namespace megalith::config
