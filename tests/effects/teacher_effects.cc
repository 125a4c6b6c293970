// The effect of a teacher's options on a tiny run, from the command's inputs on.
#include <fmt/format.h>

#include <fstream>

#include "megalith/comm/world.h"
#include "megalith/config/derive.h"
#include "megalith/run/load_model.h"
#include "megalith/run/resolve/inputs.h"
#include "megalith/run/resolve/run_settings.h"
#include "megalith/run/run_data.h"
#include "megalith/run/teacher_logits.h"
#include "megalith/train/distillation/write_teacher_files.h"
#include "tests/effects/effect.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"
#include "tests/train/trainer_case.h"

namespace megalith::testing {
namespace {

constexpr const char* kTaught = R"({"input_ids": [5, 6, 7, 8, 9, 10]}
{"input_ids": [15, 16, 17, 18]}
)";

// Files of a teacher for the texts above, at temperatures 1 and 2: four tokens of each.
const std::filesystem::path& taught_files() {
  static const TempFolder folder;
  static const std::filesystem::path files = folder / "files";
  if (std::filesystem::exists(files)) return files;
  std::ofstream(folder / "texts.jsonl") << kTaught;
  config::TrainingArguments plain;
  plain.run.finetuning_type = config::FinetuningType::kFull;
  config::TrainingArguments args = config::derive(plain).args;
  args.data.dataset = {(folder / "texts.jsonl").string()};
  args.distillation.teacher = golden_folder("preference/ref").string();
  run::RunPlan plan;
  plan.settings = run::run_settings(args, {});
  plan.model = run::model_plan(golden_folder("llama"), args);
  plan.data = run::data_plan(args, {.vocabulary = {.size = plan.model.config.vocab_size}});
  plan.distillation = run::distillation_plan(args, plan.model, plan.settings.shape);
  const auto worlds = comm::World::in_process(1);
  parallel::ParallelContext context(*worlds[0], layout::RankGrid(layout::GridShape{}));
  const run::RunData data = run::open_run_data(plan.data);
  const auto teacher = run::load_teacher(*plan.distillation, plan.settings, context);
  const train::EvalData all{.dataset = data.train->dataset, .collator = *data.train->collator};
  train::write_teacher_files({&all, 1}, *teacher, {.folder = files, .classes = 4, .temperature = 2}, context);
  return files;
}

// Lines of the run.
std::string run_taught(const config::TrainingArguments& given) {
  const TempFolder folder;
  std::ofstream(folder / "texts.jsonl") << kTaught;
  config::TrainingArguments args = config::derive(given).args;
  args.source.model_name_or_path = golden_folder("llama").string();
  args.data.dataset = {(folder / "texts.jsonl").string()};
  run::RunPlan plan;
  plan.settings = run::run_settings(args, {});
  plan.model = run::model_plan(golden_folder("llama"), args);
  plan.data = run::data_plan(args, {.vocabulary = {.size = plan.model.config.vocab_size}});
  plan.distillation = run::distillation_plan(args, plan.model, plan.settings.shape);
  const auto worlds = comm::World::in_process(1);
  parallel::ParallelContext context(*worlds[0], layout::RankGrid(layout::GridShape{}));
  run::RunData data = run::open_run_data(plan.data);
  run::attach_teacher_files(plan, context, data);
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

Effects teacher_effects() {
  const Words plain{"--stage=sft",          "--finetuning_type=full", "--max_steps=2",
                    "--learning_rate=1e-3", "--logging_steps=1",      "--per_device_train_batch_size=2",
                    "--save_strategy=no",   "--disable_shuffling",    "--use_cpu"};
  const std::string teacher = "--teacher_model_name_or_path=" + golden_folder("preference/ref").string();
  Words taught = plain;
  taught.push_back(teacher);
  Words mixed = taught;
  mixed.emplace_back("--kd_loss=jsd");
  Words from_files = plain;
  from_files.push_back("--teacher_logits_path=" + taught_files().string());
  return {
      {"teacher_logits_path", plain, {}, {from_files.back()}, run_taught},
      {"kd_top_k", from_files, {}, {"--kd_top_k=2"}, run_taught},
      {"kd_tail", from_files, {}, {"--kd_tail=false"}, run_taught},
      {"teacher_model_name_or_path", plain, {}, {teacher}, run_taught},
      {"kd_loss", taught, {}, {"--kd_loss=reverse_kl"}, run_taught},
      {"kd_beta", mixed, {}, {"--kd_beta=0.1"}, run_taught},
      {"kd_temperature", taught, {}, {"--kd_temperature=2"}, run_taught},
      {"kd_ratio", taught, {}, {"--kd_ratio=0.5"}, run_taught},
  };
}

}  // namespace megalith::testing
