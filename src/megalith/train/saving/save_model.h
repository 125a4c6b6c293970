// What a trainer writes besides logs: the model as a Hugging Face folder, or its adapter as peft's, with the arguments
// of the run.
#pragma once

#include <filesystem>

#include "megalith/model/virtual_models.h"
#include "megalith/train/settings/trainer_settings.h"

namespace megalith::train {

// The export of `models`, tokenizer files of `assets` (a folder; empty: none) and args.yaml go into `folder`, which may
// hold other things (the files of the run): they stay. A folder with a config.json is complete: it comes last, and that
// of an older model goes first. Of a model with an adapter the adapter is written (adapter_config.json comes last);
// with save_merged_model the model with the adapter merged, and the adapter in folder/adapter. All ranks call it; every
// parameter is there (finish_param_gather).
void save_model(const model::VirtualModels& models, const SaveSettings& settings, const std::filesystem::path& folder,
                const std::filesystem::path& assets);

}  // namespace megalith::train
