// The command line of `train` and `pretrain`: options of the run, flags of the launch, and switches of the command
// itself. Everything that can be decided without ranks is decided here, so that a mistake is reported once.
#include "megalith/run/run_words.h"

#include <fmt/format.h>

#include "megalith/base/log.h"
#include "megalith/config/help_and_yaml.h"
#include "megalith/run/resolve/load.h"

namespace megalith::run {

void apply_log_level(const config::LoggingConfig& logging) {
  if (logging.level != "passive") set_log_level(logging.level);
}

bool RunWords::read(config::Dialect dialect, std::span<const std::string> words, const std::string& name) {
  // Switches of the command are not options of the run: args.yaml does not record them.
  auto own = launch_.run_options();
  for (config::CommandOption option : std::initializer_list<config::CommandOption>{
           {"dry_run", "check everything, print every effective option as YAML, and stop", &dry_run_},
           {"quiet", "write only warnings, errors and the summary at the end", &quiet_},
           {"timing", "report the time of each phase of a step", &timing_},
           {"trace", "write a timeline of these steps (10-12) to output_dir/trace.json, for Perfetto", &trace_},
           {"result_rejected_tracker_filename",
            "file that remembers rejected results across restarts; steps rejected twice are skipped",
            &rejection_tracker_},
           {"help", "print the options that do something", &help_},
           {"help_all", "print also those that are accepted without effect, or refused", &help_all_},
           {"topic", "with --help or --help_all: only this topic", &topic_}})
    own.push_back(std::move(option));
  parsed_ = config::parse_arguments(dialect, words, own);
  if (help_ || help_all_) {
    const auto scope = help_all_ ? config::HelpScope::kAll : config::HelpScope::kActing;
    fmt::print("{} [run.yaml] [--nproc N] [--key value | --key=value | key=value]…\n\n{}", name,
               config::help_text(dialect, topic_, own, scope));
    return false;
  }
  // Before the checks: the checkpoint may bring the options that they require.
  if (dialect == config::Dialect::kPretrain) take_checkpoint_arguments(parsed_);
  launch_.check(parsed_.args.comm);
  launch_.look_after(parsed_.args.fault);
  apply_log_level(parsed_.args.logging);
  if (quiet_) quiet_stderr();
  for (const std::string& note : parsed_.notes) log_info("{}", note);
  if (!dry_run_) return true;
  const config::EffectiveArguments effective = effective_options(request());
  for (const std::string& warning : effective.warnings) log_warning("{}", warning);
  fmt::print("{}", config::to_yaml(effective.args));
  return false;
}

RunRequest RunWords::request() const {
  return {.work = parsed_.args.dialect == config::Dialect::kPretrain ? Work::kPretrain : Work::kTrain,
          .options = parsed_.args,
          .report = parsed_.report,
          .world = launch_.world(),
          .begins_run = launch_.begins_run(),
          .restarted = comm::launch_from_env().restarts > 0,
          .switches = switches()};
}

RunSwitches RunWords::switches() const {
  RunSwitches switches{.force = launch_.force, .quiet = quiet_, .timing = timing_};
  if (trace_) switches.trace = observe::TraceSteps::parse(*trace_);
  if (rejection_tracker_) switches.rejection_tracker = *rejection_tracker_;
  return switches;
}

}  // namespace megalith::run
