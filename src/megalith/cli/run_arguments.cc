#include "megalith/cli/run_arguments.h"

#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/log.h"
#include "megalith/config/derive.h"
#include "megalith/config/documents.h"
#include "megalith/run/pretrain.h"

namespace megalith::cli {

std::optional<config::TrainingArguments> read_run_arguments(config::Dialect dialect, const char* name, Words words,
                                                            run::LaunchFlags& launch, run::RunFlags& flags) {
  auto own = launch.run_options();
  for (auto& option : flags.options()) own.push_back(option);
  auto parsed = config::parse_arguments(dialect, words, own);
  if (flags.help) {
    fmt::print("megalith {} [run.yaml] [--nproc N] [--key value | --key=value | key=value]…\n\n{}", name,
               config::help_text(dialect, flags.topic, own));
    return std::nullopt;
  }
  parsed.report.check_runnable();
  if (dialect == config::Dialect::kPretrain) run::take_checkpoint_arguments(parsed);
  launch.check(parsed.args, /*needs_inputs=*/true);
  run::apply_log_level(parsed.args.logging);
  for (const std::string& note : parsed.notes) log_info("{}", note);
  auto effective = config::derive(parsed.args);
  for (const std::string& warning : effective.warnings) log_warning("{}", warning);
  // Level 0 has no phases of its own.
  launch.look_after(effective.args.fault);
  if (flags.timing) effective.args.logging.timing_log_level = std::max(1, effective.args.logging.timing_log_level);
  if (!flags.dry_run) return effective.args;
  fmt::print("{}", config::to_yaml(effective.args));
  return std::nullopt;
}

}  // namespace megalith::cli
