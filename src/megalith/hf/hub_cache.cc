// Resolves a model name without any network access.
//
// The Hugging Face cache keeps models--org--name/{refs,blobs,snapshots}: refs/<revision> holds a commit, and
// snapshots/<commit> holds the files as links into blobs. ModelScope keeps a plain folder per model. Both may hold
// interrupted downloads, so every folder found is checked for completeness, and each miss is remembered with its
// reason: the final message tells the user where the model was looked for and what was wrong there. Parts of names are
// checked before they become paths, so that a name can never lead out of a cache.
#include "megalith/hf/hub_cache.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include "megalith/base/env.h"
#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/io/file_io.h"

namespace megalith::hf {

namespace fs = std::filesystem;

namespace {

// "Qwen/Qwen2.5-7B@main" -> {"Qwen", "Qwen2.5-7B", "main"}.
struct HubName {
  std::string organisation;  // may be empty
  std::string name;
  std::string revision;  // empty means the default revision

  std::string repository() const { return organisation.empty() ? name : organisation + "/" + name; }
};

// Accepts letters, digits, '-', '_' and '.', as the hub does; nothing that could lead out of a folder.
bool is_name(std::string_view text) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.';
  };
  return !text.empty() && text.size() <= 96 && std::ranges::all_of(text, allowed) && text.front() != '.' &&
         text.front() != '-' && text.find("..") == std::string_view::npos && text.find("--") == std::string_view::npos;
}

// A revision may have slashes: "refs/pr/1".
bool is_revision(const std::string& text) {
  return std::ranges::all_of(split(text, '/'), [](const std::string& part) {
    return !part.empty() && part != "." && part != ".." && part.find_first_of("\\\n") == std::string::npos;
  });
}

std::optional<HubName> parse_hub_name(const std::string& text) {
  HubName hub;
  std::string repository = text;
  if (const size_t at = text.find('@'); at != std::string::npos) {
    repository = text.substr(0, at);
    hub.revision = text.substr(at + 1);
    if (!is_revision(hub.revision)) return std::nullopt;
  }
  const auto parts = split(repository, '/');
  if (parts.size() > 2 || !std::ranges::all_of(parts, is_name)) return std::nullopt;
  if (parts.size() == 2) hub.organisation = parts.front();
  hub.name = parts.back();
  return hub;
}

// Sorted entries of a folder; empty if it cannot be read.
std::vector<fs::path> entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    found.push_back(it->path());
  std::ranges::sort(found);
  return found;
}

std::string names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::path& entry : entries(folder)) names.push_back(entry.filename().string());
  return list_in_words(names, 8);
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

// Says what a downloaded folder lacks; empty when it is complete. A dangling link is a file that was not downloaded.
std::string lacking(const fs::path& folder, ModelParts needed) {
  std::vector<std::string> broken, problems;
  bool weights = false;
  for (const fs::path& entry : entries(folder)) {
    const std::string name = entry.filename().string();
    if (std::error_code error; fs::is_symlink(entry, error) && !fs::exists(entry, error)) broken.push_back(name);
    // Any format counts as weights here; WeightFiles explains pickle files.
    weights |=
        name.ends_with(".safetensors") || name.ends_with(".bin") || name.ends_with(".pt") || name.ends_with(".pth");
  }
  if (!broken.empty()) problems.push_back(fmt::format("dangling links: {}", list_in_words(broken, 8)));
  if (!is_file(folder / "config.json") && std::ranges::find(broken, "config.json") == broken.end())
    problems.emplace_back("config.json is missing");
  if (needed == ModelParts::kConfigAndWeights && !weights) problems.emplace_back("there are no weights");
  return problems.empty() ? "" : fmt::format("incomplete: {}", list_in_words(problems));
}

// Places that were searched, each with the reason why it was not used.
using Misses = std::vector<std::string>;

// Returns the snapshot of a revision: refs/<revision> holds a commit, or the revision itself is a commit.
std::optional<fs::path> hf_snapshot(const fs::path& repository, const std::string& revision) {
  const fs::path reference = repository / "refs" / revision;
  const std::string commit = is_file(reference) ? std::string(trim(io::read_text_file(reference, 4096))) : revision;
  const fs::path snapshot = repository / "snapshots" / commit;
  if (!is_revision(commit) || !is_folder(snapshot)) return std::nullopt;
  return snapshot;
}

// Returns the snapshot if it is complete; otherwise notes why not.
std::optional<fs::path> find_in_hf_cache(const HubName& hub, const fs::path& cache, ModelParts needed, Misses& misses) {
  if (cache.empty()) return std::nullopt;
  std::string folder = "models--";
  if (!hub.organisation.empty()) folder += hub.organisation + "--";
  const fs::path repository = cache / (folder + hub.name);
  const std::string revision = hub.revision.empty() ? "main" : hub.revision;
  if (!is_folder(repository)) {
    misses.push_back(repository.string());
    return std::nullopt;
  }
  const auto snapshot = hf_snapshot(repository, revision);
  if (!snapshot) {
    misses.push_back(fmt::format("{}: it has no revision {}; refs: {}; snapshots: {}", repository.string(), revision,
                                 names_in(repository / "refs"), names_in(repository / "snapshots")));
    return std::nullopt;
  }
  const std::string problem = lacking(*snapshot, needed);
  if (problem.empty()) return snapshot;
  misses.push_back(fmt::format("{}: {}", snapshot->string(), problem));
  return std::nullopt;
}

// ModelScope has moved its models over the years, so all known places are tried; some versions write dots in names as
// "___".
std::optional<fs::path> find_in_modelscope(const HubName& hub, const fs::path& cache, ModelParts needed,
                                           Misses& misses) {
  if (cache.empty() || hub.organisation.empty()) return std::nullopt;
  std::string stored = hub.name;
  for (size_t at = 0; (at = stored.find('.', at)) != std::string::npos;) stored.replace(at, 1, "___");
  bool found_one = false;
  for (const char* root : {"models", "hub/models", "hub", ""}) {
    for (const std::string& name : {stored, hub.name}) {
      const fs::path folder = cache / root / hub.organisation / name;
      if (!is_folder(folder)) continue;
      const std::string problem = lacking(folder, needed);
      if (problem.empty()) return folder;
      misses.push_back(fmt::format("{}: {}", folder.string(), problem));
      found_one = true;
    }
  }
  if (!found_one)
    misses.push_back(fmt::format("{}/{{models,hub/models,hub}}/{}/{}", cache.string(), hub.organisation, stored));
  return std::nullopt;
}

// Returns a folder that the user gave, which must be a model.
fs::path checked_folder(const fs::path& folder) {
  if (is_file(folder / "config.json")) return folder;
  // The user may have given the repository folder of the hub's cache: the model is in one of its snapshots.
  const auto snapshots = entries(folder / "snapshots");
  const std::string advice = snapshots.empty() ? "" : fmt::format("; give {}", snapshots.front().string());
  throw DataError(
      fmt::format("the model folder {} has no config.json. It holds: {}{}", folder.string(), names_in(folder), advice));
}

// Lists all places and what was wrong with each, and the commands that would download the model.
[[noreturn]] void refuse(const std::string& given, const HubName& hub, const Misses& misses) {
  std::string text = fmt::format("the model {} is not on this machine. Looked for\n  the folder {}", given, given);
  for (const std::string& miss : misses) text += "\n  " + miss;
  const std::string revision = hub.revision.empty() ? "" : " --revision " + hub.revision;
  text += fmt::format("\nDownload it:\n  hf download {}{}", hub.repository(), revision);
  if (!hub.organisation.empty())
    text += fmt::format("\nor\n  modelscope download --model {}{}", hub.repository(), revision);
  throw ConfigError(text + "\nor give the path of a folder with config.json and *.safetensors files.");
}

}  // namespace

HubEnvironment HubEnvironment::from(const Reader& read) {
  HubEnvironment env;
  env.home = read("HOME").value_or("");
  const auto folder = [&](const char* variable) -> std::optional<fs::path> {
    const auto text = read(variable);
    if (!text) return std::nullopt;
    if (text->starts_with("~/") && !env.home.empty()) return env.home / text->substr(2);
    return fs::path(*text);
  };
  // Without a home, as in some containers, there are no default places.
  const auto cache = [&]() -> fs::path { return env.home.empty() ? fs::path() : env.home / ".cache"; };
  // The order of precedence of huggingface_hub.
  if (const auto path = folder("HF_HUB_CACHE")) {
    env.hf_hub_cache = *path;
  } else if (const auto old_name = folder("HUGGINGFACE_HUB_CACHE")) {
    env.hf_hub_cache = *old_name;
  } else if (const auto hf_home = folder("HF_HOME")) {
    env.hf_hub_cache = *hf_home / "hub";
  } else if (const auto base = folder("XDG_CACHE_HOME").value_or(cache()); !base.empty()) {
    env.hf_hub_cache = base / "huggingface/hub";
  }
  if (const auto path = folder("MODELSCOPE_CACHE"))
    env.modelscope_cache = *path;
  else if (!cache().empty())
    env.modelscope_cache = cache() / "modelscope";
  return env;
}

HubEnvironment HubEnvironment::from_process() { return from(env_string); }

fs::path find_model_folder(const std::string& path_or_name, const HubEnvironment& env, ModelParts needed) {
  check<ConfigError>(!path_or_name.empty(),
                     "the model's name is empty; give a folder or a hub name such as Qwen/Qwen2.5-7B");
  const bool in_home = path_or_name.starts_with("~/") && !env.home.empty();
  const fs::path path = in_home ? env.home / path_or_name.substr(2) : fs::path(path_or_name);
  // A local folder wins over a hub name that looks the same.
  if (is_folder(path)) return checked_folder(path);
  check<ConfigError>(!is_file(path), "the model {} is a file; give the folder that holds config.json and the weights",
                     path_or_name);
  const auto hub = parse_hub_name(path_or_name);
  check<ConfigError>(hub.has_value(),
                     "the model {} is neither a folder that exists nor a hub name such as Qwen/Qwen2.5-7B or "
                     "Qwen/Qwen2.5-7B@main",
                     path_or_name);
  Misses misses;
  if (const auto found = find_in_hf_cache(*hub, env.hf_hub_cache, needed, misses)) return *found;
  // ModelScope keeps a single revision and not its name, so a request for a certain revision cannot be served from it.
  if (hub->revision.empty())
    if (const auto found = find_in_modelscope(*hub, env.modelscope_cache, needed, misses)) return *found;
  refuse(path_or_name, *hub, misses);
}

}  // namespace megalith::hf
