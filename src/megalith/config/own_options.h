// Asks a command for the options that it adds to the table. Shell completion and the manual page call a command with
// the single word kAskForOwnOptions; parse_arguments() then throws OwnOptions instead of parsing. So the list that a
// command parses with is the only one.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/config/parser.h"

namespace megalith::config {

inline constexpr std::string_view kAskForOwnOptions = "--list_own_options";

// The answer. Targets of the options point into the command, which has ended: only their types may be looked at.
class OwnOptions : public ConfigError {
 public:
  explicit OwnOptions(std::span<const CommandOption> options)
      : ConfigError("--list_own_options is answered inside the program; use --help to see the options"),
        options_(options.begin(), options.end()) {}
  const std::vector<CommandOption>& options() const { return options_; }

 private:
  std::vector<CommandOption> options_;
};

}  // namespace megalith::config
