// From what a user calls a model to the folder that holds it: a path, or a name of the Hugging Face hub or ModelScope
// that has been downloaded before. Nothing is ever fetched here.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

namespace megalith::hf {

// Where the two hubs keep what they have downloaded.
struct HubEnvironment {
  std::filesystem::path home;              // for paths that begin with ~/
  std::filesystem::path hf_hub_cache;      // holds models--org--name; not looked into when empty
  std::filesystem::path modelscope_cache;  // holds models/org/name or hub/org/name; not looked into when empty

  // Reads one environment variable; env_string outside of tests.
  using Reader = std::function<std::optional<std::string>(const char*)>;
  // HF: HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub.
  // ModelScope: MODELSCOPE_CACHE, ~/.cache/modelscope. The first that is set is the one.
  static HubEnvironment from(const Reader& read);
  static HubEnvironment from_process();
};

enum class ModelParts {
  kConfig,            // config.json is enough: the weights are made anew
  kConfigAndWeights,  // a download without weights is incomplete
};

// The folder of a model, with a config.json in it.
// - A folder that exists is itself. DataError, saying what is in it, when it has no config.json.
// - Otherwise `org/name`, `name` or either with `@revision` (a branch, a tag or a commit; "main" when absent) is looked
//   up in the HF cache, then in ModelScope's (without a revision). ConfigError when it is in neither: where it was
//   looked for, what is incomplete there, and the commands that download it.
std::filesystem::path find_model_folder(const std::string& path_or_name, const HubEnvironment& env,
                                        ModelParts needed = ModelParts::kConfigAndWeights);

}  // namespace megalith::hf
