#include "megalith/run/resolve/teacher.h"

#include <fmt/ranges.h>

#include <utility>

#include "megalith/base/error.h"
#include "megalith/model/families/family.h"
#include "megalith/run/resolve/inputs.h"
#include "megalith/train/distillation/distillation_objective.h"

namespace megalith::run {

namespace {

namespace fs = std::filesystem;

// A teacher is what its files say, apart from parts that it does not use.
model::ModelOverrides teacher_overrides() { return {.mtp_layers = 0, .towers = {.vision = false, .audio = false}}; }

model::ModelConfig config_in(const fs::path& folder) {
  return teacher_overrides().applied_to(model::read_model_config(folder));
}

}  // namespace

train::DistillationSettings distillation_settings(const config::DistillationConfig& distillation) {
  return {.loss = distillation.loss,
          .beta = distillation.beta,
          .temperature = distillation.temperature,
          .ratio = distillation.ratio};
}

std::shared_ptr<const model::ModelConfig> teacher_config(const config::TrainingArguments& args) {
  const auto& name = args.distillation.teacher;
  if (!name) return nullptr;
  return std::make_shared<const model::ModelConfig>(config_in(find_model(*name, /*weights=*/false)));
}

model::ModelSettings teacher_settings(model::ModelSettings student) {
  student.overrides = teacher_overrides();
  student.new_tokens.clear();
  return student;
}

// loss_chunk only says that the head works in slices; options_on sets their size.
plan::RunShape with_teacher(plan::RunShape shape, std::shared_ptr<const model::ModelConfig> teacher) {
  if (!teacher) return shape;
  shape.teacher = std::move(teacher);
  shape.teacher_slice = train::DistillationObjective::kSliceTokens;
  if (shape.options.loss_chunk == 0) shape.options.loss_chunk = 1;
  return shape;
}

std::optional<DistillationPlan> distillation_plan(const config::TrainingArguments& args, const ModelPlan& model,
                                                  const plan::RunShape& shape) {
  const auto& name = args.distillation.teacher;
  if (!name) return std::nullopt;
  DistillationPlan plan{.loss = distillation_settings(args.distillation), .folder = find_model(*name)};
  plan.config = std::make_shared<const model::ModelConfig>(config_in(plan.folder));
  check<ConfigError>(!model.config.vision && !model.config.audio,
                     "teacher_model_name_or_path: a teacher reads text only, but this run trains a model that sees or"
                     " hears. Use data without media, or leave the teacher out");
  check<ConfigError>(
      plan.config->vocab_size == model.config.vocab_size,
      "teacher_model_name_or_path {} has a vocabulary of {} ids, and the model that is trained one of {}:"
      " their distributions cannot be compared. Give a teacher with the model's vocabulary",
      *name, plan.config->vocab_size, model.config.vocab_size);
  const auto problems = plan::teacher_problems(with_teacher(shape, plan.config));
  check<ConfigError>(problems.empty(), "teacher_model_name_or_path {} is split like the model that is trained: {}",
                     *name, fmt::join(problems, "; "));
  return plan;
}

}  // namespace megalith::run
