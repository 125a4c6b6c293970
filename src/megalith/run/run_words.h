// The words of a run: options of the table, flags of the launcher, switches of the run.
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

// log_level; passive leaves what the environment says.
void apply_log_level(const config::LoggingConfig& logging);

// Declares itself to the parser, so it must not move.
class RunWords {
 public:
  RunWords() = default;
  RunWords(const RunWords&) = delete;
  RunWords& operator=(const RunWords&) = delete;

  // Reads the words after the name of the program (`name`, for --help). False when they asked for help or --dry_run,
  // which has been answered on stdout. Throws ConfigError with every word that is wrong; with --dry_run, with every
  // problem that options alone can tell. Says on stderr what a user should know of the options.
  bool read(config::Dialect dialect, std::span<const std::string> words, const std::string& name = "megalith train");

  const config::ParseResult& parsed() const { return parsed_; }
  const LaunchFlags& launch() const { return launch_; }
  // For resolve(); a program adds parts of its own.
  RunRequest request() const;

 private:
  RunSwitches switches() const;

  config::ParseResult parsed_;
  LaunchFlags launch_;
  bool dry_run_ = false, help_ = false, timing_ = false, force_ = false;
  std::optional<std::string> topic_, trace_, rejection_tracker_;
};

}  // namespace megalith::run
