// Converts options to the settings of the trainer and of a run's reports.
#pragma once

#include "megalith/config/training_arguments.h"
#include "megalith/layout/grid_shape.h"
#include "megalith/observe/report_settings.h"
#include "megalith/train/settings/trainer_settings.h"

namespace megalith::run {

// `args` have gone through validate() and derive(); `grid` is that of the run's world.
train::TrainerSettings trainer_settings(const config::TrainingArguments& args, const layout::GridShape& grid);
observe::ReportSettings report_settings(const config::TrainingArguments& args, const layout::GridShape& grid);

// Parts of trainer_settings, for programs that run steps without a Trainer.
train::StepSettings step_settings(const config::TrainingArguments& args);
train::UpdateSettings update_settings(const config::TrainingArguments& args);
train::RerunSettings rerun_settings(const config::TrainingArguments& args);

// Returns whether only an adapter of the model is trained.
bool trains_adapter(const config::TrainingArguments& args);

}  // namespace megalith::run
