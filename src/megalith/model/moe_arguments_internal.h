// What the options of a run change in a model with experts.
#pragma once

#include "megalith/config/training_arguments.h"
#include "megalith/model/model_options.h"

namespace megalith::model {

// Losses, capacity, noise and the like; what makes the model itself (experts, how they are chosen) is its own.
void apply_arguments(nn::RouterShape& router, const config::TrainingArguments& args);
nn::MoeOptions moe_options(const config::TrainingArguments& args);

}  // namespace megalith::model
