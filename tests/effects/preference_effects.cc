// The effect of preference options on a tiny run, from the command's inputs on.
#include <fmt/format.h>

#include <fstream>

#include "megalith/comm/world.h"
#include "megalith/config/derive.h"
#include "megalith/run/load_model.h"
#include "megalith/run/resolve/inputs.h"
#include "megalith/run/resolve/run_settings.h"
#include "megalith/run/run_data.h"
#include "tests/effects/effect.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPairs = R"({"chosen_input_ids": [5, 6, 7, 8], "rejected_input_ids": [5, 6, 9]}
{"chosen_input_ids": [15, 16, 17], "rejected_input_ids": [15, 16, 19, 20, 21]}
)";

std::string preference_text(const train::MetricList& line) {
  std::string text;
  for (const auto& [name, value] : line)
    if (name.find("per_sec") == std::string::npos && name.find("runtime") == std::string::npos)
      text += fmt::format(" {} {}", name, value);
  return text + "\n";
}

constexpr const char* kVerdicts = R"({"input_ids": [5, 6, 7, 8], "labels": [-100, 6, 7, 8], "kto_tag": true}
{"input_ids": [15, 16, 17], "labels": [-100, 16, 17], "kto_tag": false}
)";

// Lines of the run, and how many files it kept.
std::string run_preference(const config::TrainingArguments& given) {
  const TempFolder folder;
  std::ofstream(folder / "pairs.jsonl") << (given.run.stage == config::Stage::kKto ? kVerdicts : kPairs);
  config::TrainingArguments args = config::derive(given).args;
  args.source.model_name_or_path = golden_folder("llama").string();
  args.data.dataset = {(folder / "pairs.jsonl").string()};
  run::RunPlan plan;
  plan.settings = run::run_settings(args, {});
  plan.model = run::model_plan(golden_folder("llama"), args);
  plan.data = run::data_plan(args, {.vocabulary = {.size = plan.model.config.vocab_size}});
  plan.preference = run::preference_plan(args, plan.model);
  plan.preference->cache = folder / "reference";
  const auto worlds = comm::World::in_process(1);
  parallel::ParallelContext context(*worlds[0], layout::RankGrid(layout::GridShape{}));
  run::RunData data = run::open_run_data(plan.data);
  run::precompute_reference(plan, context, data);
  Recorder::Heard heard;
  train::TrainerSetup setup;
  setup.train_data = std::move(data.train);
  setup.callbacks.push_back(std::make_unique<Recorder>(heard));
  model::VirtualModels models = run::load_model(plan.model, plan.settings.model, context);
  setup.objective = run::make_objective(plan, models);
  train::Trainer(models, plan.settings.trainer, std::move(setup)).train();
  std::string text;
  for (const train::MetricList& line : heard.lines) text += preference_text(line);
  const bool kept = fs::exists(plan.preference->cache);
  return text + fmt::format("{} kept", kept ? std::distance(fs::directory_iterator(plan.preference->cache), {}) : 0);
}

}  // namespace

Effects preference_effects() {
  const Words small{"--stage=dpo",          "--finetuning_type=full", "--max_steps=2",
                    "--learning_rate=1e-3", "--logging_steps=1",      "--per_device_train_batch_size=2",
                    "--save_strategy=no",   "--disable_shuffling",    "--use_cpu"};
  const std::string reference = "--ref_model=" + golden_folder("llama").string();
  Words other = small;
  other.push_back(reference);
  Words simpo = small;
  simpo.emplace_back("--pref_loss=simpo");
  Words discopop = small, kto = small;
  discopop.emplace_back("--pref_loss=discopop");
  kto.emplace_back("--stage=kto");
  return {
      {"pref_loss", small, {}, {"--pref_loss=ipo"}, run_preference},
      {"pref_beta", small, {}, {"--pref_beta=0.5"}, run_preference},
      {"pref_ftx", small, {}, {"--pref_ftx=1"}, run_preference},
      {"dpo_label_smoothing", small, {}, {"--dpo_label_smoothing=0.2"}, run_preference},
      {"simpo_gamma", simpo, {}, {"--simpo_gamma=1"}, run_preference},
      {"discopop_tau", discopop, {}, {"--discopop_tau=1"}, run_preference},
      {"ld_alpha", small, {}, {"--ld_alpha=0.3"}, run_preference},
      {"kto_chosen_weight", kto, {}, {"--kto_chosen_weight=2"}, run_preference},
      {"kto_rejected_weight", kto, {}, {"--kto_rejected_weight=2"}, run_preference},
      {"ref_model", small, {}, {"--ref_model=" + golden_folder("preference/ref").string()}, run_preference},
      {"ref_model_adapters",
       other,
       {},
       {"--ref_model_adapters=" + golden_folder("lora/llama_r8").string()},
       run_preference},
      {"precompute_ref_log_probs", small, {}, {"--precompute_ref_log_probs"}, run_preference},
  };
}

}  // namespace megalith::testing
