// AutoModel: from a folder or a hub name to the model chunks of this rank.
//
//   auto models = AutoModel::from_pretrained("Qwen/Qwen2.5-0.5B", settings, context);
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "megalith/hf/hub_cache.h"
#include "megalith/model/model_settings.h"
#include "megalith/model/virtual_models.h"

namespace megalith::model {

// All ranks call these functions, with the same settings. Each returns the model with the overrides of the settings
// applied to its configuration, split as the settings and `context` say.
struct AutoModel {
  // Returns the model of `path_or_name` (a folder, or the hub name of a downloaded model) with its weights. With
  // `vocab_size`, the vocabulary grows to so many ids.
  static VirtualModels from_pretrained(const std::string& path_or_name, const ModelSettings& settings,
                                       parallel::ParallelContext& context, std::optional<int64_t> vocab_size = {},
                                       const hf::HubEnvironment& env = hf::HubEnvironment::from_process());
  // Returns a model of `config` with the weights and the vocabulary of another folder: a run's own checkpoint.
  static VirtualModels with_weights(ModelConfig config, const std::filesystem::path& weights,
                                    const ModelSettings& settings, parallel::ParallelContext& context);
  // Returns a model of `config` with initial weights from the seed of the settings.
  static VirtualModels from_config(const ModelConfig& config, const ModelSettings& settings,
                                   parallel::ParallelContext& context);
};

}  // namespace megalith::model
