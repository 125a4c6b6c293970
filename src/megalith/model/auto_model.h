// AutoModel: from a folder or a hub name to the model chunks of this rank.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "megalith/config/training_arguments.h"
#include "megalith/hf/hub_cache.h"
#include "megalith/model/virtual_models.h"

namespace megalith::model {

struct AutoModel {
  // The model of `path_or_name` (a folder, or a hub name that has been downloaded) with its weights, laid out as `args`
  // and `context` say. `vocab_size`: grow the vocabulary to so many ids. All ranks call it.
  static VirtualModels from_pretrained(const std::string& path_or_name, const config::TrainingArguments& args,
                                       parallel::ParallelContext& context, std::optional<int64_t> vocab_size = {},
                                       const hf::HubEnvironment& env = hf::HubEnvironment::from_process());
  // A model of `config` (with what the arguments change) and the weights of another folder, whose vocabulary it takes:
  // a run's own checkpoint.
  static VirtualModels with_weights(ModelConfig config, const std::filesystem::path& weights,
                                    const config::TrainingArguments& args, parallel::ParallelContext& context);
  // The same architecture with fresh weights from the arguments' seed.
  static VirtualModels from_config(const ModelConfig& config, const config::TrainingArguments& args,
                                   parallel::ParallelContext& context);
};

// The configuration of `in_files` with what the arguments change (dropout, initial standard deviation).
ModelConfig with_arguments(ModelConfig in_files, const config::TrainingArguments& args);

}  // namespace megalith::model
