// What the commands that run a model share (score, generate): which model, in which layout, on which ranks.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "megalith/cli/command.h"
#include "megalith/model/virtual_models.h"
#include "megalith/run/launch_flags.h"
#include "megalith/run/resolve/run_plan.h"

namespace megalith::cli {

// Declares itself to the parser, so it must not move.
class ModelCommand {
 public:
  // Reads the words: --model, --adapter_name_or_path (the model gets that adapter), the launch flags, every option of
  // the table (sizes, precision, seed), and `own`. False when
  // --help was given and has been answered with `usage`. Everything that can be checked without ranks is checked.
  bool parse(Words words, std::vector<config::CommandOption> own, const char* usage);

  const config::TrainingArguments& args() const { return args_; }
  const std::filesystem::path& folder() const { return plan_.folder; }  // of the model

  // Starts the ranks, loads the model on them and runs `work` on each; an exit code.
  int run(const std::function<void(model::VirtualModels&)>& work) const;

 private:
  run::LaunchFlags launch_;
  std::optional<std::string> model_;
  config::TrainingArguments args_;
  run::ModelPlan plan_;
};

}  // namespace megalith::cli
