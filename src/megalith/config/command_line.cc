// Reads words as argparse and HfArgumentParser do: an option takes the words after it that look like values, as many as
// its type allows. All problems are collected, so that one run of the program shows every mistake. Messages for unknown
// names look for a mixed spelling, a negation, an abbreviation and a typo, in that order.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "megalith/base/text.h"
#include "megalith/config/assignment_internal.h"

namespace megalith::config {
namespace {

constexpr const char* kOrigin = "command line";

// argparse's rule: a word that starts with a dash is an option unless it is a number, a lone dash or contains a blank.
bool is_value(const std::string& word) {
  if (!word.starts_with('-') || word == "-") return true;
  return word.find(' ') != std::string::npos || parse_double(word).has_value();
}

// Brings a name into its one spelling: dashes become underscores; std::nullopt if both occur.
std::optional<std::string> with_underscores(std::string name) {
  const bool dashes = name.find('-') != std::string::npos;
  if (dashes && name.find('_') != std::string::npos) return std::nullopt;
  std::ranges::replace(name, '-', '_');
  return name;
}

// Reads the words from left to right; `next_` is the first that nothing has consumed.
class WordReader {
 public:
  WordReader(std::span<const std::string> words, std::span<const CommandOption> command_options,
             std::vector<std::string>& problems, std::vector<std::string>& unknown)
      : words_(words), command_options_(command_options), problems_(problems), unknown_(unknown) {}

  // Every word is consumed by read_one() or by the option before it, so the loop ends.
  std::vector<Assignment> read() {
    while (next_ < words_.size()) read_one(words_[next_++]);
    return std::move(assignments_);
  }

 private:
  // A word is --name, --name=value, name=value, or left over.
  void read_one(const std::string& word) {
    const size_t equals = word.find('=');
    if (word.starts_with("--") && word.size() > 2) {
      // "--lr=1e-4": `given` keeps the dashes for messages, `name` loses them for the look-up.
      const bool has_value = equals != std::string::npos;
      std::optional<std::string> value;
      if (has_value) value = word.substr(equals + 1);
      return read_named(word.substr(0, equals), word.substr(2, has_value ? equals - 2 : equals), value);
    }
    if (!word.starts_with('-') && equals != std::string::npos && equals > 0)
      return read_override(word.substr(0, equals), word.substr(equals + 1));
    problems_.push_back(
        fmt::format("\"{}\" is left over: it is neither an option nor the value of one. Write options as --name value "
                    "or name=value",
                    word));
  }

  // --name or --name=value
  void read_named(const std::string& given, const std::string& name, const std::optional<std::string>& inline_value) {
    const auto spelling = with_underscores(name);
    if (spelling)
      // A command's own names come first: they may hide an option of the table, never the other way around.
      if (const CommandOption* own = command_option(*spelling)) return read_command_option(given, *own, inline_value);
    const auto match = spelling ? OptionTable::instance().find(*spelling) : std::nullopt;
    if (!match) {
      unknown_.push_back(unknown_option(given, name, command_names()));
      skip_values();
      return;
    }
    Assignment assignment{match->option, match->negated, {}, given, *spelling, kOrigin};
    if (match->negated) {
      if (inline_value) {
        problems_.push_back(fmt::format("{} takes no value (given: {}); it switches {} off", given, *inline_value,
                                        match->option->name));
        return;
      }
    } else if (inline_value) {
      assignment.raw = {RawValue::Kind::kWords, {*inline_value}};
    } else if (!take_values(*match->option, given, assignment.raw)) {
      return;
    }
    assignments_.push_back(std::move(assignment));
  }

  // name=value, in Hydra's style. The value is read as in a file, so x=null and x=[1,2] work here and not after "--".
  void read_override(const std::string& given, const std::string& value) {
    const auto spelling = with_underscores(given);
    if (spelling)
      if (const CommandOption* own = command_option(*spelling)) return read_command_option(given, *own, value);
    const auto match = spelling ? OptionTable::instance().find(*spelling) : std::nullopt;
    if (!match) {
      unknown_.push_back(unknown_option(given, given, command_names()));
    } else if (match->negated) {
      problems_.push_back(fmt::format("{}={}: write {}=false", given, value, match->option->name));
    } else {
      assignments_.push_back({match->option, false, raw_from_override(value), given, *spelling, kOrigin});
    }
  }

  // Takes the words that belong to the option. Returns false, and adds a problem, if it needs one and there is none.
  bool take_values(const Option& option, const std::string& given, RawValue& raw) {
    const bool may_be_bare = option.type == ValueType::kBool || !option.bool_words.empty();
    if (may_be_bare) {
      // Swallows the next word like argparse, but never a name=value: no boolean contains an equals sign.
      const bool has_word =
          next_ < words_.size() && !words_[next_].starts_with('-') && words_[next_].find('=') == std::string::npos;
      if (has_word) raw = {RawValue::Kind::kWords, {words_[next_++]}};
      return true;
    }
    // A list takes every word up to the next option: "--data_path 0.3 a 0.7 b --seed 1" -> {0.3, a, 0.7, b}.
    const size_t limit = option.takes_list() ? words_.size() : 1;
    while (raw.words.size() < limit && next_ < words_.size() && is_value(words_[next_]))
      raw.words.push_back(words_[next_++]);
    if (raw.words.empty()) {
      problems_.push_back(fmt::format("{} needs a value: {}", given, type_hint(option.type)));
      return false;
    }
    raw.kind = RawValue::Kind::kWords;
    return true;
  }

  // After an unknown option its values would be reported as left over; one message is enough.
  void skip_values() {
    while (next_ < words_.size() && is_value(words_[next_]) && words_[next_].find('=') == std::string::npos) ++next_;
  }

  // Returns nullptr if the command has no such option.
  const CommandOption* command_option(const std::string& spelling) const {
    const auto found = std::ranges::find(command_options_, spelling, &CommandOption::name);
    return found == command_options_.end() ? nullptr : &*found;
  }

  std::vector<std::string> command_names() const {
    std::vector<std::string> names;
    for (const CommandOption& option : command_options_) names.push_back(option.name);
    return names;
  }

  // The command's own options have no table entry: the target's type decides how the value is read.
  void read_command_option(const std::string& given, const CommandOption& option, std::optional<std::string> value) {
    if (bool* const* flag = std::get_if<bool*>(&option.target)) {
      const auto parsed = value ? parse_bool(*value) : std::optional<bool>(true);
      if (!parsed) problems_.push_back(fmt::format("{} = {}: expected {}", given, *value, type_hint(ValueType::kBool)));
      **flag = parsed.value_or(false);
      return;
    }
    if (!value && next_ < words_.size() && is_value(words_[next_])) value = words_[next_++];
    if (!value) {
      problems_.push_back(fmt::format("{} needs a value: {}", given, option.help));
    } else if (auto* const* text = std::get_if<std::optional<std::string>*>(&option.target)) {
      **text = *value;
    } else if (auto* const* list = std::get_if<std::vector<std::string>*>(&option.target)) {
      (*list)->push_back(*value);
    } else if (auto* const* real = std::get_if<std::optional<double>*>(&option.target)) {
      **real = parse_double(*value);
      if (!**real)
        problems_.push_back(fmt::format("{} = {}: expected {}", given, *value, type_hint(ValueType::kFloat)));
    } else if (const auto number = parse_int(*value)) {
      *std::get<std::optional<int64_t>*>(option.target) = number;
    } else {
      problems_.push_back(fmt::format("{} = {}: expected {}", given, *value, type_hint(ValueType::kInt)));
    }
  }

  std::span<const std::string> words_;
  std::span<const CommandOption> command_options_;
  std::vector<std::string>& problems_;
  std::vector<std::string>& unknown_;
  std::vector<Assignment> assignments_;
  size_t next_ = 0;
};

// Returns up to three names that `prefix` abbreviates, shortest first.
std::vector<std::string> names_starting_with(const std::string& prefix, std::span<const std::string> names) {
  std::vector<std::string> found;
  for (const std::string& name : names)
    if (prefix.size() >= 2 && name.starts_with(prefix)) found.push_back(name);
  std::ranges::sort(found, {}, &std::string::size);
  if (found.size() > 3) found.resize(3);
  return found;
}

}  // namespace

std::vector<Assignment> read_words(std::span<const std::string> words, std::span<const CommandOption> command_options,
                                   std::vector<std::string>& problems, std::vector<std::string>& unknown) {
  return WordReader(words, command_options, problems, unknown).read();
}

// Tries the likely mistakes, the most specific first:
//   --learning-rate_x      mixes dashes and underscores -> write one of them
//   --no_bf16              bf16 is off anyway           -> leave it out
//   --tensor_model         abbreviates                  -> did you mean --tensor_model_parallel_size?
//   --lerning_rate         a typo                       -> did you mean --learning_rate?
std::string unknown_option(const std::string& given, const std::string& spelling, std::span<const std::string> extra) {
  std::string name = spelling;
  std::ranges::replace(name, '-', '_');
  std::vector<std::string> names = OptionTable::instance().names();
  names.insert(names.end(), extra.begin(), extra.end());

  const std::string prefix = given.starts_with("--") ? "--" : "";
  if (std::ranges::find(names, name) != names.end())
    return fmt::format("unknown option {}: a name is written with underscores or with dashes, not both; write {}{}",
                       given, prefix, name);
  if (name.starts_with("no_")) {
    const auto positive = OptionTable::instance().find(name.substr(3));
    if (positive && positive->option->type == ValueType::kBool)
      return fmt::format("unknown option {}: {} is off by default; leave it out or write {}{}=false", given,
                         positive->option->name, prefix, positive->option->name);
  }
  std::vector<std::string> candidates = names_starting_with(name, names);
  const bool abbreviated = !candidates.empty();
  if (!abbreviated) candidates = nearest(name, names);
  if (candidates.empty()) return fmt::format("unknown option {}; --help_all lists all, by topic", given);
  for (std::string& candidate : candidates) candidate.insert(0, prefix);
  return fmt::format("unknown option {}; {} {}?", given,
                     abbreviated ? "names are not abbreviated: did you mean" : "did you mean",
                     fmt::format("{}", fmt::join(candidates, " or ")));
}

}  // namespace megalith::config
