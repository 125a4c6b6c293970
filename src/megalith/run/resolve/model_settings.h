// Converts the options of a run to the settings of its model: how it is held and run, and changes to its configuration.
//
//   auto models = model::AutoModel::from_pretrained(folder, run::model_settings(args, context.device()), context);
#pragma once

#include <c10/core/Device.h>

#include <optional>

#include "megalith/config/training_arguments.h"
#include "megalith/model/model_settings.h"

namespace megalith::run {

// Returns everything a model takes from the options: the results of the functions below, the split over pipeline stages
// and the seed. Here and below, `args` have gone through derive().
model::ModelSettings model_settings(const config::TrainingArguments& args, at::Device device);

// Returns precision, sequence and context parallelism, recomputation, loss in chunks and dispatch of experts. The
// adapter is left out: it depends on the model (model::with_adapter).
model::ModelOptions model_options(const config::TrainingArguments& args, at::Device device);
// Returns how linear layers use fp8; std::nullopt without it.
std::optional<ops::Fp8Recipe> fp8_recipe(const config::PrecisionConfig& precision);
// Returns the same options for another device: the chunk size of a loss in chunks depends on it.
model::ModelOptions options_on(model::ModelOptions options, at::Device device);
// Returns dropout, standard deviation of initial weights, multi-token prediction, router settings and, in stages rm and
// cls, the head that scores sequences. Options that were not given keep the model's own values.
model::ModelOverrides model_overrides(const config::TrainingArguments& args);
// Returns the settings of a frozen model beside a trained one with `policy` settings: quantized weights lie below an
// adapter, which it does not have, and no layers of it are chosen.
model::ModelSettings reference_settings(model::ModelSettings policy);
// Returns the settings of a teacher beside a student with `student` settings: the same precision and layout, but its
// own routers and vocabulary, and neither multi-token prediction nor towers.
model::ModelSettings teacher_settings(model::ModelSettings student);

}  // namespace megalith::run
