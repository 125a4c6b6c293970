// The one table of options. The command line, files, --help, docs/options.md and args.yaml all come from it.
//
// Options that something in Megalith reads are in options/*.cc; names that it only has to understand are in
// foreign_options.txt.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megalith/config/enums.h"
#include "megalith/config/training_arguments.h"
#include "megalith/config/value.h"

namespace megalith::config {

// How Megalith treats an option.
enum class OptionStatus {
  kImplemented,  // has its effect; tests/effects proves it
  kPlanned,      // read, checked and recorded; `reason` names the part of Megalith that will act on it
  kNoEffect,     // accepted; a note is logged when its value is not the default
  kRefused,      // any value but the default stops the run with `reason`
};
// Returns the status in words, for reports.
std::string_view to_string(OptionStatus status);

// A value that the reference accepts and Megalith does not: stage=ppo.
struct RefusedValue {
  std::string value;
  std::string reason;
};

// One option: how it is written, what it accepts, and what it sets.
struct Option {
  std::string name;                    // canonical: with underscores, as in args.yaml
  std::vector<std::string> aliases;    // other spellings of the same thing
  std::vector<std::string> negations;  // flags that set it to false, besides no_<name> of a default-true bool
  std::string topic;
  std::string help;
  OptionStatus status = OptionStatus::kImplemented;
  std::string reason;  // see OptionStatus
  ValueType type = ValueType::kText;
  bool optional = false;             // may be None
  std::vector<std::string> choices;  // if empty, any value
  std::vector<RefusedValue> refused_values;
  std::string refused_others;           // reason for every other text that is not a choice; if empty, that is an error
  std::vector<std::string> bool_words;  // for text that also takes a boolean: the words for true and false
  std::optional<double> minimum;        // inclusive
  std::optional<double> maximum;        // inclusive
  Value train_default;
  Value pretrain_default;
  bool in_train = true;  // listed by train --help; both dialects accept it
  bool in_pretrain = true;
  // Part of the shape of a model built from scratch: `train` rejects it beside model_name_or_path, whose config.json
  // would silently override it.
  bool describes_new_model = false;
  // Access to a member of TrainingArguments; empty for options without a consumer (kNoEffect, kRefused).
  std::function<Value(const TrainingArguments&)> read;
  std::function<void(TrainingArguments&, const Value&)> write;

  // Returns the default of a dialect.
  const Value& default_value(Dialect dialect) const {
    return dialect == Dialect::kTrain ? train_default : pretrain_default;
  }
  // Returns whether the option takes several words. A comma list is one word.
  bool takes_list() const {
    return type == ValueType::kTextList || type == ValueType::kIntList || type == ValueType::kFloatList;
  }
};

// Immutable after construction; every name, alias and negation is unique.
class OptionTable {
 public:
  // The option that a name on the command line refers to.
  struct Match {
    const Option* option = nullptr;
    bool negated = false;  // --no_x
  };

  // Returns the table of this build.
  static const OptionTable& instance();
  explicit OptionTable(std::vector<Option> options);

  const std::vector<Option>& options() const { return options_; }
  // Finds an option by any spelling with underscores, including negated names; std::nullopt for an unknown name.
  std::optional<Match> find(std::string_view name) const;
  // Returns every spelling, for suggestions.
  const std::vector<std::string>& names() const { return names_; }
  // Returns the topics in the order in which they are documented.
  std::vector<std::string> topics() const;

 private:
  void add_name(const std::string& name, Match match);

  std::vector<Option> options_;
  std::unordered_map<std::string, Match> by_name_;  // points into options_
  std::vector<std::string> names_;
};

// Returns the words in a value that choices apply to: the text, or each item of a list.
std::vector<std::string> words_of(const Value& value);
// Returns what is wrong with a value of the right type (choices, range); empty if nothing is.
std::string value_problem(const Option& option, const Value& value);

// Returns all arguments at the dialect's defaults.
TrainingArguments default_arguments(Dialect dialect);

}  // namespace megalith::config
