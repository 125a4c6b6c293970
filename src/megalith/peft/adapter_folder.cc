// Resolves the path of an adapter. peft writes an adapter named other than "default" into a subfolder of that name, so
// a folder with exactly one such subfolder stands for it.
#include "megalith/peft/adapter_folder.h"

#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/peft/adapter_config.h"

namespace megalith::peft {

namespace fs = std::filesystem;

namespace {

// Names of the subfolders that are adapters, sorted.
std::vector<std::string> adapters_in(const fs::path& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.is_directory() && is_adapter_folder(entry.path())) found.push_back(entry.path().filename().string());
  std::ranges::sort(found);
  return found;
}

// A name relative to adapter_folder wins over one relative to the working directory.
fs::path folder_of(const std::string& path, const fs::path& base) {
  if (base.empty()) return path;
  const fs::path named(path);  // an absolute path joined to another would stand for itself
  if (named.is_relative() && fs::is_directory(base / named)) return base / named;
  if (path == "default" && is_adapter_folder(base)) return base;
  return base.is_relative() && fs::is_directory(named / base) ? named / base : named;
}

}  // namespace

bool is_adapter_folder(const fs::path& folder) {
  std::error_code error;
  return fs::is_regular_file(folder / kConfigName, error);
}

fs::path find_adapter(const std::string& path, const fs::path& base) {
  const fs::path folder = folder_of(path, base);
  check<ConfigError>(fs::is_directory(folder),
                     "there is no adapter {}: it is not a folder; give one with {} and {}.safetensors", path,
                     kConfigName, kWeightsStem);
  if (!is_adapter_folder(folder)) {
    const std::vector<std::string> inside = adapters_in(folder);
    check<ConfigError>(!inside.empty(), "{} is not an adapter: neither it nor a folder in it has {}", folder.string(),
                       kConfigName);
    check<ConfigError>(
        inside.size() == 1,
        "{} holds several adapters: {}; give the folder of one, such as {}, or several of these names with"
        " adapter_folder {}",
        folder.string(), list_in_words(inside), (folder / inside[0]).string(), folder.string());
    return find_adapter((folder / inside[0]).string());
  }
  const fs::path weights = folder / fmt::format("{}.safetensors", kWeightsStem);
  const bool pickled = fs::exists(folder / fmt::format("{}.bin", kWeightsStem));
  check<ConfigError>(
      fs::is_regular_file(weights), "the adapter {} has no {}.safetensors{}", folder.string(), kWeightsStem,
      pickled ? ", only a pickle file, which is not read: load it with peft and save_pretrained it again" : "");
  return folder;
}

}  // namespace megalith::peft
