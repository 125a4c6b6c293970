#include "megalith/cli/model_command.h"

#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/base/log.h"
#include "megalith/model/adapter.h"
#include "megalith/model/families/family.h"
#include "megalith/run/inputs.h"
#include "megalith/run/rank_main.h"
#include "megalith/run/resolve/adapter_source.h"

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
  if (args_.lora.adapter_name_or_path.empty()) args_.run.finetuning_type = config::FinetuningType::kFull;
  if (!model_) model_ = args_.source.model_name_or_path;
  check<ConfigError>(model_.has_value(),
                     "--model is missing: a folder with config.json and safetensors files, or a hub"
                     " name");
  launch_.check(args_, /*needs_inputs=*/false);
  check<ConfigError>(args_.parallel.pp.value_or(1) == 1,
                     "this command runs whole models; leave out pipeline_model_parallel_size, and split them by"
                     " tensor_model_parallel_size");
  folder_ = run::find_model(*model_, args_);
  const model::ModelConfig config =
      model::read_model_config(folder_);  // its problems are told once, before ranks exist
  if (args_.run.finetuning_type == config::FinetuningType::kLora)
    model::adapter_config(run::adapter_source(args_), config);
  return true;
}

int ModelCommand::run(const std::function<void(model::VirtualModels&)>& work) const {
  return launch_.run([&] {
    return run::run_as_rank(args_, [&](parallel::ParallelContext& context) {
      auto models = run::load_model(folder_, args_, context);
      work(models);
    });
  });
}

}  // namespace megalith::cli
