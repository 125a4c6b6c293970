#include "tests/train/distillation_case.h"

#include <gtest/gtest.h>

#include <fstream>

#include "megalith/model/auto_model.h"
#include "megalith/run/resolve/model_settings.h"
#include "megalith/run/resolve/preference_settings.h"
#include "tests/support/golden.h"
#include "tests/support/reference_model.h"
#include "tests/support/temp_folder.h"

namespace megalith::testing {

nlohmann::json read_golden_distillation() {
  return nlohmann::json::parse(std::ifstream("tests/data/distillation/distillation.json"));
}

config::DistillationConfig golden_distillation(const nlohmann::json& options) {
  return {.teacher = "teacher",
          .loss = config::choice_of<config::KdLoss>(options.at("kd_loss").get<std::string>()).value(),
          .beta = options.at("kd_beta"),
          .temperature = options.at("kd_temperature"),
          .ratio = options.at("kd_ratio")};
}

std::filesystem::path other_teacher() {
  static const TempFolder folder;
  if (!std::filesystem::exists(folder / "config.json")) {
    ReferenceConfig config = ReferenceConfig::of_family("llama");
    config.vocab_size = 256;
    config.hidden_size = 48;
    config.num_layers = 6;
    ReferenceModel::random(config, 5).save(folder.path());
  }
  return folder.path();
}

std::unique_ptr<train::TeacherModel> teacher_on(const TrainerRank& rank, const std::filesystem::path& folder) {
  const model::ModelSettings settings = run::teacher_settings(run::model_settings(rank.args, at::kCPU));
  return std::make_unique<train::TeacherModel>(
      model::AutoModel::from_pretrained(folder.string(), settings, rank.models.context()),
      run::step_settings(rank.args));
}

RunLog run_distillation(const TrainerCase& how, const DistillationRun& run) {
  SCOPED_TRACE(how.name);
  RunLog result;
  run_trainer_ranks(run.student, how, [&](const TrainerRank& r) {
    Recorder::Heard heard;
    train::TrainerSetup setup = r.setup(dataset_of(run.samples), dataset_of(run.samples));
    setup.objective = std::make_unique<train::DistillationObjective>(run::distillation_settings(r.args.distillation),
                                                                     teacher_on(r, run.teacher));
    setup.callbacks.push_back(std::make_unique<Recorder>(heard));
    train::Trainer trainer(r.models, r.settings(), std::move(setup));
    const train::TrainOutput output = trainer.train();
    RunLog mine{heard.lines, trainer.evaluate(), output};
    if (r.rank.rank == 0) result = std::move(mine);
  });
  return result;
}

}  // namespace megalith::testing
