// Parses the command line of a run: options, flags of the launcher, switches of the run.
//
//   run::RunWords words;
//   if (!words.read(config::Dialect::kTrain, {argv + 1, argv + argc})) return run::kDone;   // --help, --dry_run
//   for (const config::OptionUse& use : words.parsed().report.uses) …                         // what was understood
//   return run::launch_training(run::resolve(words.request()), words.launch());
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "megalith/config/parser.h"
#include "megalith/run/launch_flags.h"
#include "megalith/run/resolve/resolve.h"

namespace megalith::run {

// Applies log_level; "passive" keeps the level from the environment.
void apply_log_level(const config::LoggingConfig& logging);

// The parser keeps pointers to its members, so it cannot be moved.
class RunWords {
 public:
  RunWords() = default;
  RunWords(const RunWords&) = delete;
  RunWords& operator=(const RunWords&) = delete;

  // Parses the arguments of a program called `name`. Returns false if they asked for --help or --dry_run, which it has
  // answered on stdout. Logs notes about the options. Throws ConfigError that lists every word that cannot be
  // understood and, with --dry_run, every problem that can be found without files.
  bool read(config::Dialect dialect, std::span<const std::string> words, const std::string& name = "megalith train");

  const config::ParseResult& parsed() const { return parsed_; }
  const LaunchFlags& launch() const { return launch_; }
  // Returns the request for resolve(), to which a program may add parts of its own.
  RunRequest request() const;

 private:
  RunSwitches switches() const;

  config::ParseResult parsed_;
  LaunchFlags launch_;
  bool dry_run_ = false, help_ = false, help_all_ = false, timing_ = false, quiet_ = false;
  std::optional<std::string> topic_, trace_, rejection_tracker_;
};

}  // namespace megalith::run
