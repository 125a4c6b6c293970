// From options to what the trainer and the reports of a run are told.
#pragma once

#include "megalith/config/training_arguments.h"
#include "megalith/layout/grid_shape.h"
#include "megalith/observe/report_settings.h"
#include "megalith/train/settings/trainer_settings.h"

namespace megalith::run {

// `args` after validate() and derive(); `grid` of the world that the run has.
train::TrainerSettings trainer_settings(const config::TrainingArguments& args, const layout::GridShape& grid);
observe::ReportSettings report_settings(const config::TrainingArguments& args, const layout::GridShape& grid);

// Parts of the former, for programs that drive steps without a Trainer.
train::StepSettings step_settings(const config::TrainingArguments& args);
train::UpdateSettings update_settings(const config::TrainingArguments& args);
train::RerunSettings rerun_settings(const config::TrainingArguments& args);

// Whether the model has an adapter that alone is trained.
bool trains_adapter(const config::TrainingArguments& args);

}  // namespace megalith::run
