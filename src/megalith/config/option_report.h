// What became of every option that was given.
#pragma once

#include <string>
#include <vector>

#include "megalith/config/option_table.h"

namespace megalith::config {

struct OptionUse {
  std::string given;    // as it was written: --tp, --no-rope-fusion, learning_rate
  std::string name;     // canonical
  std::string value;    // as it was understood
  std::string origin;   // "command line" or file:line
  OptionStatus status;  // of this value: stage=ppo is refused although stage is not
  std::string reason;   // see OptionStatus
  bool is_default;      // the value is the default anyway: nothing is lost, whatever the status
};

// One entry an option, the last occurrence, in the order of the words.
struct OptionReport {
  std::vector<OptionUse> uses;

  // Uses whose value cannot be honoured: refused ones, and planned ones that are not at their default.
  std::vector<const OptionUse*> refused() const;
  std::vector<const OptionUse*> planned() const;
  // A sentence for each option that is accepted without effect and not at its default.
  std::vector<std::string> notes() const;

  // Throws ConfigError naming every refused use with its reason. For commands that only look (preview).
  void check_not_refused() const;
  // Also for planned ones: a run must not start on options that nothing acts on.
  void check_runnable() const;
};

// The reason why Megalith cannot honour a value that the reference knows (stage=ppo); empty when it can.
std::string refusal_of(const Option& option, const Value& value);
// What becomes of one value. `given`, `origin`: see OptionUse.
OptionUse use_of(const Option& option, const Value& value, Dialect dialect, std::string given, std::string origin);

// The report of arguments that a program has set itself: one entry for each option that is not at the default of their
// dialect. It has no entry for an option without a member in TrainingArguments (most of the refused ones): only the
// report of words knows those, and only it tells a default that was given from one that was not.
OptionReport report_of(const TrainingArguments& args);

}  // namespace megalith::config
