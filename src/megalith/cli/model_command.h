// ModelCommand: the part that commands which run a model share (score, generate): model, layout and ranks.
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

// The parser keeps pointers to its members, so it must not move.
class ModelCommand {
 public:
  // Parses the words: --model, --adapter_name_or_path (the model gets that adapter), the launch flags, every option of
  // the table (sizes, precision, seed), and `own`. Checks everything that can be checked without ranks. Returns false
  // if --help was given, after printing `usage`.
  bool parse(Words words, std::vector<config::CommandOption> own, const char* usage);

  // Valid after parse() has returned true.
  const config::TrainingArguments& args() const { return args_; }
  // The folder of the tokenizer and the chat template: that of the model, or of an adapter with a larger vocabulary.
  std::filesystem::path tokenizer_folder() const;
  const model::ModelConfig& model() const { return plan_.config; }

  // Turns sequence parallelism off, for work that runs single tokens, which cannot be shared among ranks. Weights are
  // split as before.
  void keep_tokens_whole();

  // Leaves out the towers that the input does not need: for text alone, any layout takes the model then. An adapter may
  // be on the towers, so a model with one keeps them all.
  void keep_towers(const model::TowerChoice& needed);

  // Starts the ranks, loads the model on them and runs `work` on each. Returns an exit code.
  int run(const std::function<void(model::VirtualModels&)>& work) const;

 private:
  run::LaunchFlags launch_;
  std::optional<std::string> model_;
  config::TrainingArguments args_;
  run::ModelPlan plan_;
  model::TowerChoice towers_{};
};

}  // namespace megalith::cli
