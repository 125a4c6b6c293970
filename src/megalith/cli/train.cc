// `megalith train` and `megalith pretrain`: arguments, checks, ranks.
#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/cli/command.h"
#include "megalith/cli/launch_flags.h"
#include "megalith/config/derive.h"
#include "megalith/config/documents.h"

namespace megalith::cli {

namespace {

int run_training(config::Dialect dialect, const char* name, Words words) {
  LaunchFlags launch;
  bool dry_run = false, help = false;
  std::optional<std::string> topic;
  auto own = launch.options();
  own.push_back({"dry_run", "check everything, print every effective option as YAML, and stop", &dry_run});
  own.push_back({"help", "print the options", &help});
  own.push_back({"topic", "with --help: only this topic", &topic});
  const auto parsed = config::parse_arguments(dialect, words, own);
  if (help) {
    fmt::print("megalith {} [run.yaml] [--nproc N] [--key value | --key=value | key=value]…\n\n{}", name,
               config::help_text(dialect, topic, own));
    return kDone;
  }
  parsed.report.check_not_refused();
  launch.check(parsed.args, /*needs_inputs=*/true);
  for (const std::string& note : parsed.notes) log_info("{}", note);
  const auto effective = config::derive(parsed.args);
  for (const std::string& warning : effective.warnings) log_warning("{}", warning);
  if (dry_run) {
    fmt::print("{}", config::to_yaml(effective.args));
    return kDone;
  }
  throw ConfigError(
      fmt::format("the trainer is not part of this version: megalith {} checks arguments only. Add --dry_run to see"
                  " what they come to.",
                  name));
}

}  // namespace

int run_train(Words words) { return run_training(config::Dialect::kTrain, "train", words); }
int run_pretrain(Words words) { return run_training(config::Dialect::kPretrain, "pretrain", words); }

}  // namespace megalith::cli
