// Reads foreign_options.txt, one option per line: names, type, default, ignored or refused, reason. Sections place the
// lines among Megalith's own options, so that the documents list an option where its topic is. The file is part of the
// program, so a mistake in it is an InternalError.
//
//   [Batch and seed, after seed]
//   name,alias   int   none   ignored   why Megalith does not need it
#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/config/foreign_options_internal.h"
#include "megalith/config/option_table.h"

namespace megalith::config {
namespace {

// "[topic]" or "[topic, after option]", and the options of the lines after it.
struct ForeignSection {
  std::string topic;
  std::string after;  // an option of the topic; if empty, the section goes to the end of the topic
  std::vector<Option> options;
};

// Cuts the first word off `line`; returns an empty text at its end.
std::string take_word(std::string_view& line) {
  line = trim(line);
  const std::string word(line.substr(0, line.find_first_of(" \t")));
  line.remove_prefix(word.size());
  return word;
}

// Reads the text in one pass; `number_` is the line that messages name.
class ForeignReader {
 public:
  std::vector<ForeignSection> read(std::string_view text) {
    for (const std::string& each : split(text, '\n')) {
      ++number_;
      const std::string_view line = trim(each);
      if (line.empty() || line.starts_with('#')) continue;
      if (line.starts_with('[')) {
        sections_.push_back(section_of(line));
      } else {
        require(!sections_.empty(), "an option comes before the first [topic]", line);
        sections_.back().options.push_back(option_of(line));
      }
    }
    return std::move(sections_);
  }

 private:
  void require(bool holds, std::string_view problem, std::string_view given) const {
    check(holds, "foreign_options.txt:{}: {}: \"{}\"", number_, problem, given);
  }

  // "[Data, after split]" -> {"Data", "split"}; "[Data]" -> {"Data", ""}.
  ForeignSection section_of(std::string_view line) const {
    constexpr std::string_view kAfter = ", after ";
    require(line.ends_with(']'), "a section is written [topic] or [topic, after option]", line);
    const std::string_view inside = line.substr(1, line.size() - 2);
    const size_t comma = inside.find(kAfter);
    if (comma == std::string_view::npos) return {std::string(inside), "", {}};
    return {std::string(inside.substr(0, comma)), std::string(inside.substr(comma + kAfter.size())), {}};
  }

  // The first four words are fields, and the rest of the line is the reason.
  Option option_of(std::string_view line) const {
    Option option;
    option.topic = sections_.back().topic;
    option.aliases = split(take_word(line), ',');
    option.name = option.aliases.front();
    option.aliases.erase(option.aliases.begin());
    option.type = type_of(take_word(line));
    const std::string default_word = take_word(line);
    option.optional = default_word == "none";
    option.train_default = option.pretrain_default = default_of(option, default_word);
    option.status = status_of(take_word(line));
    option.reason = trim(line);
    require(!option.reason.empty(), "the reason is missing", option.name);
    return option;
  }

  // Number lists and comma lists do not occur among foreign options, so the file has no words for them.
  ValueType type_of(const std::string& word) const {
    for (const ValueType type : {ValueType::kBool, ValueType::kInt, ValueType::kFloat, ValueType::kText,
                                 ValueType::kTextList, ValueType::kDict})
      if (word == type_name(type)) return type;
    require(false, "the type is not bool, int, float, text, list or JSON", word);
    return {};
  }

  // "none" makes the option optional, and a pair of quotes stands for the empty text.
  Value default_of(const Option& option, const std::string& word) const {
    if (option.optional) return std::monostate{};
    std::string expected;
    const auto value = convert({RawValue::Kind::kWords, {word == "\"\"" ? "" : word}}, option.type, false, expected);
    require(!word.empty() && value.has_value(), "the default of " + option.name + " is not " + expected, word);
    return *value;
  }

  OptionStatus status_of(const std::string& word) const {
    require(word == "ignored" || word == "refused", "the status is neither ignored nor refused", word);
    return word == "ignored" ? OptionStatus::kNoEffect : OptionStatus::kRefused;
  }

  int number_ = 0;  // current line, from 1
  std::vector<ForeignSection> sections_;
};

// Returns the place of a section among `options`: the end for a topic that no option has.
std::vector<Option>::iterator place_of(const ForeignSection& section, std::vector<Option>& options) {
  const auto in_topic = [&](const Option& option) { return option.topic == section.topic; };
  if (section.after.empty()) {
    const auto last = std::find_if(options.rbegin(), options.rend(), in_topic);
    return last == options.rend() ? options.end() : last.base();
  }
  const auto before = std::ranges::find(options, section.after, &Option::name);
  check(before != options.end() && in_topic(*before), "foreign_options.txt: {} is not an option of the topic {}",
        section.after, section.topic);
  return std::next(before);
}

}  // namespace

std::vector<Option> with_foreign_options(std::vector<Option> own, std::string_view text) {
  for (ForeignSection& section : ForeignReader().read(text))
    own.insert(place_of(section, own), std::make_move_iterator(section.options.begin()),
               std::make_move_iterator(section.options.end()));
  return own;
}

}  // namespace megalith::config
