// How a model is held and run, and what changes in its configuration: from the options of a run.
//
//   auto models = model::AutoModel::from_pretrained(folder, run::model_settings(args, context.device()), context);
#pragma once

#include <c10/core/Device.h>

#include "megalith/config/training_arguments.h"
#include "megalith/model/model_settings.h"

namespace megalith::run {

// Everything a model takes from the options: what the functions below give, the split over pipeline stages, the seed.
// `args` after derive(), here and below.
model::ModelSettings model_settings(const config::TrainingArguments& args, at::Device device);

// Precision, sequence and context parallelism, recomputation, loss in chunks, dispatch of experts. The adapter is
// left out: it depends on the model (model::with_adapter).
model::ModelOptions model_options(const config::TrainingArguments& args, at::Device device);
// The same options on another device: how many tokens at a time a loss in chunks takes depends on it.
model::ModelOptions options_on(model::ModelOptions options, at::Device device);
// Dropout, standard deviation of fresh weights, multi-token prediction, routers. What was not given is the model's own.
model::ModelOverrides model_overrides(const config::TrainingArguments& args);

}  // namespace megalith::run
