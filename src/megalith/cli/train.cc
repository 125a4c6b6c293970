// `megalith train` and `megalith pretrain`: arguments, checks, ranks.
#include <fmt/format.h>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/cli/command.h"
#include "megalith/cli/launch_flags.h"
#include "megalith/cli/rank_main.h"
#include "megalith/cli/training_inputs.h"
#include "megalith/cli/training_run.h"
#include "megalith/config/derive.h"
#include "megalith/config/documents.h"

namespace megalith::cli {

namespace {

// Words to effective arguments. Nothing when the words asked for help or --dry_run, which has been answered.
std::optional<config::TrainingArguments> read_arguments(config::Dialect dialect, const char* name, Words words,
                                                        LaunchFlags& launch, RunFlags& flags) {
  auto own = launch.options();
  for (auto& option : flags.options()) own.push_back(option);
  const auto parsed = config::parse_arguments(dialect, words, own);
  if (flags.help) {
    fmt::print("megalith {} [run.yaml] [--nproc N] [--key value | --key=value | key=value]…\n\n{}", name,
               config::help_text(dialect, flags.topic, own));
    return std::nullopt;
  }
  if (flags.dry_run)
    parsed.report.check_not_refused();
  else
    parsed.report.check_not_refused();
  launch.check(parsed.args, /*needs_inputs=*/true);
  for (const std::string& note : parsed.notes) log_info("{}", note);
  const auto effective = config::derive(parsed.args);
  for (const std::string& warning : effective.warnings) log_warning("{}", warning);
  if (!flags.dry_run) return effective.args;
  fmt::print("{}", config::to_yaml(effective.args));
  return std::nullopt;
}

}  // namespace

int run_train(Words words) {
  LaunchFlags launch;
  RunFlags flags;
  const auto args = read_arguments(config::Dialect::kTrain, "train", words, launch, flags);
  if (!args) return kDone;
  const TrainingInputs inputs = check_inputs(*args);
  check_output_folder(args->save);
  launch.ends_in_order = true;
  return launch.run([&] {
    return run_as_rank(*args, [&](parallel::ParallelContext& context) {
      train::RunData data = train::open_run_data(*args, inputs.tools);
      model::VirtualModels models = load_model(inputs, *args, context);
      RunParts parts;
      parts.setup.train_data = std::move(data.train);
      parts.setup.eval_data = std::move(data.eval);
      parts.setup.assets = inputs.model_folder;
      parts.data = std::move(data.described);
      parts.sequence_length = args->data.cutoff_len;
      run_training(models, *args, flags, std::move(parts));
    });
  });
}

int run_pretrain(Words words) {
  LaunchFlags launch;
  RunFlags flags;
  if (!read_arguments(config::Dialect::kPretrain, "pretrain", words, launch, flags)) return kDone;
  throw ConfigError(
      "pre-training from scratch is not part of this version: megalith pretrain checks arguments only. Add --dry_run "
      "to "
      "see what they come to.");
}

}  // namespace megalith::cli
