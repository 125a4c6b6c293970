// Parsing, checks and ranks for commands that run one model. Everything that can fail without ranks fails in parse().
#include "megalith/cli/model_command.h"

#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/config/derive.h"
#include "megalith/config/validate.h"
#include "megalith/model/families/family.h"
#include "megalith/model/weight_check.h"
#include "megalith/run/load_model.h"
#include "megalith/run/rank_main.h"
#include "megalith/run/resolve/inputs.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/runtime_settings.h"

namespace megalith::cli {

bool ModelCommand::parse(Words words, std::vector<config::CommandOption> own, const char* usage) {
  bool help = false;
  for (auto& option : launch_.options()) own.push_back(option);
  own.push_back({"model", "folder of the model, or a hub name that has been downloaded", &model_});
  own.push_back({"help", "print the usage", &help});
  const auto parsed = config::parse_arguments(config::Dialect::kTrain, words, own);
  if (help) {
    fmt::print("{}", usage);
    return false;
  }
  parsed.report.check_not_refused();
  args_ = parsed.args;
  // finetuning_type defaults to lora in `train`; here there is an adapter only if one is named.
  if (args_.lora.adapter_name_or_path.empty()) args_.run.finetuning_type = config::FinetuningType::kFull;
  args_.freeze = {};  // nothing is trained
  if (!model_) model_ = args_.source.model_name_or_path;
  check<ConfigError>(model_.has_value(),
                     "--model is missing: a folder with config.json and safetensors files, or a hub"
                     " name");
  launch_.check(args_.comm);
  config::validate(args_, {.world_size = launch_.world().size, .needs_inputs = false});
  check<ConfigError>(
      !run::asks_for_rows(args_.source),
      "this command uses a model as it is: rows that grow here would be untrained. Leave out resize_vocab,"
      " add_tokens and add_special_tokens; the vocabulary of a grown model or adapter is in its files");
  plan_ = run::model_plan(run::find_model(*model_, !args_.source.train_from_scratch), args_, {},
                          /*reads_tokenizer=*/false);
  if (config::scores_sequences(args_.run.stage) && !plan_.fresh)
    run::check_trained_head(plan_, model::read_model_config(plan_.folder));
  // Its warnings are about runs.
  args_ = config::derive(args_, /*experts=*/plan_.config.moe.has_value()).args;
  return true;
}

std::filesystem::path ModelCommand::tokenizer_folder() const {
  const std::filesystem::path& folder = plan_.vocabulary.tokenizer_folder;
  return folder.empty() ? plan_.folder : folder;
}

void ModelCommand::keep_tokens_whole() {
  args_.parallel.sequence_parallel = false;
  args_.parallel.tp_comm_overlap = false;
}

void ModelCommand::keep_towers(const model::TowerChoice& needed) {
  if (!plan_.fresh) model::require_towers(needed, plan_.folder);
  if (plan_.adapter) return;
  towers_ = needed;
  plan_.config = model::with_towers(plan_.config, towers_);
}

// Every rank loads its part of the model itself; the plan has been checked, so loading is all that can still fail.
int ModelCommand::run(const std::function<void(model::VirtualModels&)>& work) const {
  const parallel::RuntimeSettings runtime = run::runtime_settings(args_, launch_.world());
  model::ModelSettings settings = run::with_vocabulary(run::model_settings(args_, at::kCPU), plan_.vocabulary);
  settings.overrides.towers = towers_;
  return launch_.run([&] {
    return run::run_as_rank(runtime, [&](parallel::ParallelContext& context) {
      auto models = run::load_model(plan_, settings, context);
      work(models);
    });
  });
}

}  // namespace megalith::cli
