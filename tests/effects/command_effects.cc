// Options that act in `megalith train` itself, before and around the trainer.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <fstream>

#include "megalith/base/log.h"
#include "megalith/comm/world.h"
#include "megalith/run/load_model.h"
#include "megalith/run/resolve/inputs.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/output_folder.h"
#include "megalith/run/resolve/run_settings.h"
#include "megalith/run/run_words.h"
#include "tests/effects/effect.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {
namespace {

// A folder with something in it, as output_dir.
std::string output_folder(const config::TrainingArguments& args) {
  const TempFolder folder;
  std::ofstream(folder / "notes.txt") << "mine";
  config::SaveConfig save = args.save;
  save.output_dir = folder.path().string();
  try {
    run::check_output_folder(run::output_settings(save), /*begins_run=*/true);
    return "taken";
  } catch (const std::exception&) {
    return "refused";
  }
}

// The weights that a run begins with.
std::string weights(const config::TrainingArguments& args) {
  const auto worlds = comm::World::in_process(1);
  parallel::ParallelContext context(*worlds[0], layout::RankGrid(layout::GridShape{}));
  const model::VirtualModels models = run::load_model(run::model_plan(golden_dir() / "hf" / "llama", args),
                                                      run::model_settings(args, at::kCPU), context);
  double sum = 0;
  for (const nn::Parameter* parameter : models.parameters()) sum += parameter->value.abs().sum().item<double>();
  return fmt::format("{:.3f}", sum);
}

std::string loudness(const config::TrainingArguments& args) {
  run::apply_log_level(args.logging);
  const bool debug = is_logged(LogLevel::kDebug), warning = is_logged(LogLevel::kWarning);
  set_log_level("info");
  return fmt::format("debug {} warning {}", debug, warning);
}

}  // namespace

Effects command_effects() {
  return {
      {"overwrite_output_dir", {}, {}, {"--overwrite_output_dir"}, output_folder},
      {"log_level", {}, {"--log_level=debug"}, {"--log_level=error"}, loudness},
      {"train_from_scratch", {}, {}, {"--train_from_scratch"}, weights},
      {"additional_configs", {}, {}, {R"(--additional_configs={"train_from_scratch": true})"}, weights},
  };
}

}  // namespace megalith::testing
