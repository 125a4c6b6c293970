// `megalith eval`: the evaluation loop alone.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/cli/command.h"
#include "megalith/config/derive.h"
#include "megalith/run/inputs.h"
#include "megalith/run/launch_flags.h"
#include "megalith/run/rank_main.h"
#include "megalith/run/resolve/trainer_settings.h"
#include "megalith/train/trainer.h"

namespace megalith::cli {

namespace {

constexpr const char* kEvalUsage = R"(megalith eval --model MODEL --eval_dataset NAMES [options]

Loss, perplexity and token accuracy of a model on data, every sample once; rewards and margins of preference pairs
(--stage dpo --ref_model MODEL). Options are those of `megalith train`:

  --model MODEL          folder, or a hub name that has been downloaded
  --adapter_name_or_path FOLDER   evaluate it with this adapter
  --eval_dataset NAMES   names in dataset_dir/dataset_info.json, or files; several with commas
  --stage pt|sft|dpo     texts, conversations or preferences (default sft)
  --template NAME        chat template by name (default: the tokenizer's own)
  --cutoff_len N         tokens of a sample
  --per_device_eval_batch_size N
  --nproc N --tp N --pp N    ranks of this machine that share the model; what is left runs in data parallel
  --bf16 | --fp16        number format (default fp32)
  --json                 one JSON object instead of a table
)";

config::TrainingArguments effective(config::TrainingArguments args, const std::optional<std::string>& model) {
  if (model) args.source.model_name_or_path = model;
  if (args.data.eval_dataset.empty()) args.data.eval_dataset = std::exchange(args.data.dataset, {});
  check<ConfigError>(!args.data.eval_dataset.empty(),
                     "there is nothing to evaluate on; give eval_dataset: a name of dataset_info.json, or a file");
  args.data.dataset.clear();
  args.data.val_size = 0;
  args.data.streaming = false;
  args.run.do_train = false;
  args.run.do_eval = true;
  args.save.output_dir.reset();
  if (args.lora.adapter_name_or_path.empty()) args.run.finetuning_type = config::FinetuningType::kFull;
  return config::derive(args).args;
}

void print_result(const train::MetricList& metrics, bool json) {
  if (json) return fmt::print("{}\n", metrics.to_json().dump());
  for (const auto& [name, value] : metrics) fmt::print("{:<28} {:.6g}\n", name, value);
}

}  // namespace

int run_eval(Words words) {
  run::LaunchFlags launch;
  bool help = false, json = false;
  std::optional<std::string> model;
  auto own = launch.options();
  own.push_back({"model", "folder of the model, or a hub name that has been downloaded", &model});
  own.push_back({"json", "one JSON object instead of a table", &json});
  own.push_back({"help", "print the usage", &help});
  const auto parsed = config::parse_arguments(config::Dialect::kTrain, words, own);
  if (help) {
    fmt::print("{}", kEvalUsage);
    return kDone;
  }
  parsed.report.check_runnable();
  config::TrainingArguments args = effective(parsed.args, model);
  launch.check(args, /*needs_inputs=*/false);
  const run::TrainingInputs inputs = run::check_inputs(args);
  return launch.run([&] {
    return run::run_as_rank(args, [&](parallel::ParallelContext& context) {
      run::RunData data = run::open_run_data(args, inputs.tools);
      run::precompute_reference(inputs, args, context, data);
      model::VirtualModels models = run::load_model(inputs.model_folder, args, context);
      train::TrainerSetup setup;
      setup.objective = run::preference_objective(inputs, args, models);
      setup.eval_data = std::move(data.eval);
      train::Trainer trainer(models, run::trainer_settings(args, context.grid().shape()), std::move(setup));
      const train::MetricList metrics = trainer.evaluate();
      if (context.rank() == 0) print_result(metrics, json);
    });
  });
}

}  // namespace megalith::cli
