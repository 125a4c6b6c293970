// Finds adapters on disk.
//
//   folder/adapter_config.json, folder/adapter_model.safetensors       one adapter
//   folder/<name>/adapter_config.json, …                               several, told apart by name
//
// peft's save_pretrained writes the adapter named "default" into the folder itself, and others into subfolders.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace megalith::peft {

// Returns whether a folder is an adapter: it has an adapter_config.json.
bool is_adapter_folder(const std::filesystem::path& folder);

// Returns the adapter that a user means: the folder itself, or the only adapter in its subfolders. With `base` (option
// adapter_folder) it is looked for in this order: the folder `path` in `base`, where "default" is `base` itself if that
// is an adapter; the folder `base` in `path`, as LLaMA-Factory has it; `path`. Throws ConfigError when there is no such
// folder, no adapter in it, or several adapters, which are listed.
std::filesystem::path find_adapter(const std::string& path, const std::filesystem::path& base = {});

}  // namespace megalith::peft
