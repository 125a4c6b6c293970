// The teacher of a distillation: where it is, whether it fits the model that it teaches and the layout, and how it is
// built.
#pragma once

#include <memory>
#include <optional>

#include "megalith/config/training_arguments.h"
#include "megalith/model/model_settings.h"
#include "megalith/plan/run_shape.h"
#include "megalith/run/resolve/run_plan.h"

namespace megalith::run {

// Returns the loss and its coefficients.
train::DistillationSettings distillation_settings(const config::DistillationConfig& distillation);

// Returns the teacher's configuration as a run builds it, from its config.json alone; nullptr without a teacher. Throws
// ConfigError or DataError.
std::shared_ptr<const model::ModelConfig> teacher_config(const config::TrainingArguments& args);
// Returns the settings of a teacher beside a student with `student` settings: the same precision and layout, but its own
// routers and vocabulary, and neither multi-token prediction nor towers.
model::ModelSettings teacher_settings(model::ModelSettings student);
// Lets the planner count the teacher, and the student's loss in slices. Does nothing without one.
plan::RunShape with_teacher(plan::RunShape shape, std::shared_ptr<const model::ModelConfig> teacher);

// Plans the teacher of a student with this model; std::nullopt without one. Throws ConfigError for a teacher with
// another vocabulary, or that the layout of `shape` cannot split, by its name, and for students that see or hear.
std::optional<DistillationPlan> distillation_plan(const config::TrainingArguments& args, const ModelPlan& model,
                                                  const plan::RunShape& shape);

}  // namespace megalith::run
