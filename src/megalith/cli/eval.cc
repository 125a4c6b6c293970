// `megalith eval`: runs only the evaluation of a training run.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "megalith/cli/command.h"
#include "megalith/config/parser.h"
#include "megalith/run/resolve/resolve.h"
#include "megalith/run/run.h"

namespace megalith::cli {

namespace {

// The text of --help.
constexpr const char* kEvalUsage = R"(megalith eval --model MODEL --eval_dataset NAMES [options]

Loss, perplexity and token accuracy of a model on data, every sample once; rewards and margins of preference pairs
(--stage dpo --ref_model MODEL), accuracy of reward models and classifiers (--stage rm, --stage cls). Options are those
of `megalith train`:

  --model MODEL          folder, or a hub name that has been downloaded
  --adapter_name_or_path FOLDER   evaluate it with this adapter
  --eval_dataset NAMES   names in dataset_dir/dataset_info.json, or files; several with commas
  --stage pt|sft|dpo|kto|rm|cls   texts, conversations, preferences, answers with verdicts; pairs for a reward model,
                         texts with labels for a classifier (default sft)
  --template NAME        chat template by name (default: the tokenizer's own)
  --cutoff_len N         most tokens per sample
  --per_device_eval_batch_size N
  --nproc N --tp N --pp N    ranks on this machine and the sizes that share the model; the rest is data parallel
  --bf16 | --fp16        number format (default fp32)
  --json                 one JSON object instead of a table
)";

// Names are those of the metrics in a training log, such as eval_loss.
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
  launch.check(parsed.args.comm);
  run::RunRequest request{
      .work = run::Work::kEvaluate, .options = parsed.args, .report = parsed.report, .world = launch.world()};
  // --model is short for model_name_or_path and wins over it.
  if (model) request.options.source.model_name_or_path = model;
  return run::launch_evaluation(run::resolve(request), launch,
                                [&](const train::MetricList& metrics) { print_result(metrics, json); });
}

}  // namespace megalith::cli
