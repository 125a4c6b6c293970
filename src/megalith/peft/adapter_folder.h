// Where adapters lie on the disk.
//
//   folder/adapter_config.json, folder/adapter_model.safetensors       one adapter
//   folder/<name>/adapter_config.json, …                               several, told apart by name
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace megalith::peft {

// Whether a folder is an adapter.
bool is_adapter_folder(const std::filesystem::path& folder);

// The adapter that a user means: a folder that is one, or one with a single adapter in a subfolder. `base`: where
// relative paths are looked for first (adapter_folder); empty: nowhere. Throws ConfigError when there is no such
// folder, none in it, or several, which are listed.
std::filesystem::path find_adapter(const std::string& path, const std::filesystem::path& base = {});

}  // namespace megalith::peft
