// The effect of options about scores of sequences on a tiny run, from the command's inputs on.
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

constexpr const char* kScoredPairs = R"({"chosen_input_ids": [5, 6, 7, 8], "rejected_input_ids": [5, 6, 9]}
{"chosen_input_ids": [15, 16, 17], "rejected_input_ids": [15, 16, 19, 20, 21]}
)";
constexpr const char* kLabelledTexts = R"({"input_ids": [5, 6, 7, 8], "label": 1}
{"input_ids": [15, 16, 17], "label": 0}
)";

// Lines of the run.
std::string run_scored(const config::TrainingArguments& given) {
  const TempFolder folder;
  const bool pairs = given.run.stage == config::Stage::kReward;
  std::ofstream(folder / "scored.jsonl") << (pairs ? kScoredPairs : kLabelledTexts);
  config::TrainingArguments args = config::derive(given).args;
  args.source.model_name_or_path = golden_folder("llama").string();
  args.data.dataset = {(folder / "scored.jsonl").string()};
  run::RunPlan plan;
  plan.settings = run::run_settings(args, {});
  plan.model = run::model_plan(golden_folder("llama"), args);
  plan.scoring = run::scoring_plan(args, plan.model.config);
  run::DataTools tools{.vocabulary = {.size = plan.model.config.vocab_size}};
  if (!pairs) tools.labels = run::label_form(plan.model.config);
  plan.data = run::data_plan(args, tools);
  const auto worlds = comm::World::in_process(1);
  parallel::ParallelContext context(*worlds[0], layout::RankGrid(layout::GridShape{}));
  run::RunData data = run::open_run_data(plan.data);
  Recorder::Heard heard;
  train::TrainerSetup setup;
  setup.train_data = std::move(data.train);
  setup.callbacks.push_back(std::make_unique<Recorder>(heard));
  model::VirtualModels models = run::load_model(plan.model, plan.settings.model, context);
  setup.objective = run::make_objective(plan, models);
  train::Trainer(models, plan.settings.trainer, std::move(setup)).train();
  std::string text;
  for (const train::MetricList& line : heard.lines)
    for (const auto& [name, value] : line)
      if (name.find("per_sec") == std::string::npos && name.find("runtime") == std::string::npos)
        text += fmt::format("{} {}\n", name, value);
  return text;
}

}  // namespace

Effects scoring_effects() {
  const Words small{
      "--finetuning_type=full",          "--max_steps=2",      "--learning_rate=1e-3", "--logging_steps=1",
      "--per_device_train_batch_size=2", "--save_strategy=no", "--disable_shuffling",  "--use_cpu"};
  Words rewards = small, labels = small;
  rewards.emplace_back("--stage=rm");
  labels.emplace_back("--stage=cls");
  Words one = labels;
  one.emplace_back("--num_labels=1");
  return {
      {"center_rewards_coefficient", rewards, {}, {"--center_rewards_coefficient=1"}, run_scored},
      {"num_labels", labels, {"--num_labels=2"}, {"--num_labels=3"}, run_scored},
      {"problem_type", one, {"--problem_type=regression"}, {"--problem_type=multi_label_classification"}, run_scored},
  };
}

}  // namespace megalith::testing
