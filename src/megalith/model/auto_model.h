// AutoModel: from a folder or a hub name to the model chunks of this rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "megalith/hf/hub_cache.h"
#include "megalith/model/model_settings.h"
#include "megalith/model/virtual_models.h"

namespace megalith::model {

// All ranks call these functions, with the same settings. Each gives the model with the overrides of the settings
// applied to its configuration, split as the settings and `context` say.
struct AutoModel {
  // The model of `path_or_name` (a folder, or a hub name that has been downloaded) with its weights. `vocab_size`: grow
  // the vocabulary to so many ids.
  static VirtualModels from_pretrained(const std::string& path_or_name, const ModelSettings& settings,
                                       parallel::ParallelContext& context, std::optional<int64_t> vocab_size = {},
                                       const hf::HubEnvironment& env = hf::HubEnvironment::from_process());
  // A model of `config` with the weights of another folder, whose vocabulary it takes: a run's own checkpoint.
  static VirtualModels with_weights(ModelConfig config, const std::filesystem::path& weights,
                                    const ModelSettings& settings, parallel::ParallelContext& context);
  // A model of `config` with fresh weights from the seed of the settings.
  static VirtualModels from_config(const ModelConfig& config, const ModelSettings& settings,
                                   parallel::ParallelContext& context);
};

}  // namespace megalith::model
