// Exports the model as a Hugging Face folder, or its adapter as a peft folder, together with the arguments of the run.
#pragma once

#include <filesystem>

#include "megalith/model/pretrained.h"
#include "megalith/model/virtual_models.h"
#include "megalith/train/settings/trainer_settings.h"

namespace megalith::train {

// Writes the export of `models`, `assets` and args.yaml into `folder`; other files in it, such as those of the run,
// stay. A folder with a config.json is complete: it is written last, and an older one is removed first. For a model
// with an adapter, writes the adapter (adapter_config.json last); with save_merged_model, the model with the adapter
// merged in, and the adapter in folder/adapter. Collective; every parameter must have arrived (finish_param_gather).
void save_model(const model::VirtualModels& models, const SaveSettings& settings, const std::filesystem::path& folder,
                const model::Assets& assets);

}  // namespace megalith::train
