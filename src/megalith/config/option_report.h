// The outcome for every option that was given: acted on, without effect, planned or refused.
#pragma once

#include <string>
#include <vector>

#include "megalith/config/option_table.h"

namespace megalith::config {

// One option that was given.
struct OptionUse {
  std::string given;    // as it was written: --tp, --no-rope-fusion, learning_rate
  std::string name;     // canonical
  std::string value;    // as it was understood
  std::string origin;   // "command line" or file:line
  OptionStatus status;  // status of this value: stage=ppo is refused although other stages are not
  std::string reason;   // see OptionStatus
  bool is_default;      // the value is the default, so nothing is lost whatever the status
};

// One entry per option, for its last occurrence, in the order of the words.
struct OptionReport {
  std::vector<OptionUse> uses;

  // Return the uses whose value cannot be honored: refused ones, and planned ones that are not at their default.
  std::vector<const OptionUse*> refused() const;
  std::vector<const OptionUse*> planned() const;
  // Returns a sentence for each option that is accepted without effect and not at its default.
  std::vector<std::string> notes() const;

  // Throws ConfigError naming every refused use with its reason. For commands that only inspect (preview).
  void check_not_refused() const;
  // Does the same for planned ones as well: a run must not start with options that nothing acts on.
  void check_runnable() const;
};

// Returns why Megalith cannot honor a value that the reference knows (stage=ppo); empty if it can.
std::string refusal_of(const Option& option, const Value& value);
// Returns what happens to one value. `given`, `origin`: see OptionUse.
OptionUse use_of(const Option& option, const Value& value, Dialect dialect, std::string given, std::string origin);

// Returns the report of arguments that a program has set itself: one entry per option that is not at the default of
// their dialect. It has no entry for options without a member in TrainingArguments (most of the refused ones): only the
// report of words knows those, and only it can tell a default that was given from one that was not.
OptionReport report_of(const TrainingArguments& args);

}  // namespace megalith::config
