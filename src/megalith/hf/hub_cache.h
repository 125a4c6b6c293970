// Finds the folder of a model that a user names by a path, or by its name on the Hugging Face hub or ModelScope if it
// has been downloaded before. Nothing is ever downloaded here.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace megalith::hf {

// The folders in which the two hubs keep their downloads.
struct HubEnvironment {
  std::filesystem::path home;              // for paths that begin with ~/
  std::filesystem::path hf_hub_cache;      // holds models--org--name; not looked into when empty
  std::filesystem::path modelscope_cache;  // holds models/org/name or hub/org/name; not looked into when empty

  // Reads one environment variable; env_string except in tests.
  using Reader = std::function<std::optional<std::string>(const char*)>;
  // HF: HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub.
  // ModelScope: MODELSCOPE_CACHE, ~/.cache/modelscope. The first variable that is set decides.
  static HubEnvironment from(const Reader& read);
  static HubEnvironment from_process();
};

// The parts of a model that a caller needs.
enum class ModelParts {
  kConfig,            // config.json is enough: the weights are initialized
  kConfigAndWeights,  // a download without weights is incomplete
};

// Returns the folder of a model, which has a config.json.
// - A folder that exists is returned as it is. Throws DataError, listing its contents, when it has no config.json.
// - Otherwise `org/name`, `name` or either with `@revision` (a branch, a tag or a commit; "main" when absent) is looked
//   up in the HF cache, then (without a revision) in ModelScope's. Throws ConfigError when it is in neither, saying
//   where it looked, what is incomplete there, and which commands download the model.
std::filesystem::path find_model_folder(const std::string& path_or_name, const HubEnvironment& env,
                                        ModelParts needed = ModelParts::kConfigAndWeights);

}  // namespace megalith::hf
