// Names and order of a run's checkpoints. Everything here must survive a kill at any moment: folders appear and vanish
// by rename, the tracker is replaced by rename, and temporary names (checkpoint-S.tmp-*) are never mistaken for
// checkpoints. Removal ignores errors: a full or slow file system must not stop training.
#include "megalith/checkpoint/run_folder.h"

#include <fmt/format.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/checkpoint/manifest.h"
#include "megalith/io/file_io.h"
#include "megalith/io/json_text.h"

namespace megalith::checkpoint {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "checkpoint-";

// Returns S of checkpoint-S; std::nullopt for other names, including checkpoint-07, which folder_name never writes.
std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto step = parse_int(name.substr(kPrefix.size()));
  return step && *step >= 0 && name == folder_name(*step) ? step : std::nullopt;
}

// Compares files, not names: `best` may be a relative path.
bool same_folder(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return fs::equivalent(a, b, error) && !error;
}

// Renames the folder, so that nobody sees it half-removed, and then deletes it. Returns a sentence if that fails.
std::optional<std::string> remove_checkpoint(const fs::path& folder) {
  const fs::path going = folder.string() + ".tmp-removed";
  std::error_code error;
  fs::remove_all(going, error);  // left by a process that was killed here
  fs::rename(folder, going, error);
  if (!error) fs::remove_all(going, error);
  if (!error) return std::nullopt;
  return fmt::format("{} could not be removed: {}", folder.string(), error.message());
}

}  // namespace

std::string folder_name(int64_t step) { return fmt::format("{}{}", kPrefix, step); }

std::vector<StepFolder> list_checkpoints(const fs::path& run) {
  std::vector<StepFolder> folders;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(run, error))
    if (const auto step = step_of(entry.path().filename().string()); step && entry.is_directory(error))
      folders.push_back({*step, entry.path()});
  std::ranges::sort(folders, std::less<>(), &StepFolder::step);
  return folders;
}

// The folder is synced too: after a power failure the rename must still be there.
void write_tracker(const fs::path& checkpoint) {
  const fs::path run = checkpoint.parent_path();
  io::replace_text_file(run / kTrackerName, checkpoint.filename().string() + "\n");
  io::sync_folder(run);
}

std::optional<fs::path> read_tracker(const fs::path& run) {
  const fs::path file = run / kTrackerName;
  if (!fs::exists(file)) return std::nullopt;
  const std::string name(trim(io::read_text_file(file, 4096)));
  check<DataError>(step_of(name).has_value(), "{} holds {}; expected the name of a checkpoint, such as checkpoint-10",
                   file.string(), io::in_quotes(name));
  check<DataError>(fs::is_directory(run / name), "{} names {}, which is not there", file.string(), name);
  return run / name;
}

// The tracker wins: it is written only after a checkpoint is complete and has its final name.
std::optional<fs::path> latest_checkpoint(const fs::path& run) {
  if (const auto named = read_tracker(run)) return named;
  const std::vector<StepFolder> all = list_checkpoints(run);
  for (auto it = all.rbegin(); it != all.rend(); ++it)
    if (has_manifest(it->folder)) return it->folder;
  return std::nullopt;
}

// Example with steps 10 20 30 40, limit 2 and best 10: 20 and 30 go, 10 and 40 stay.
std::vector<fs::path> to_remove(const std::vector<StepFolder>& all, const Retention& keep) {
  if (all.empty()) return {};
  const fs::path newest = all.back().folder;
  const auto stays = [&](const StepFolder& saved) {
    return saved.folder == newest || (keep.best && same_folder(saved.folder, *keep.best));
  };
  std::vector<fs::path> gone;
  size_t left = all.size();
  const size_t limit = keep.total_limit.value_or(0) > 0 ? static_cast<size_t>(*keep.total_limit) : all.size();
  for (const StepFolder& saved : all) {  // oldest first
    if (stays(saved)) continue;
    const bool over_limit = left > limit;
    if (!over_limit && !(keep.retain_interval && saved.step % *keep.retain_interval != 0)) continue;
    gone.push_back(saved.folder);
    --left;
  }
  return gone;
}

std::vector<std::string> rotate(const fs::path& run, const Retention& keep) {
  std::vector<std::string> problems;
  for (const fs::path& folder : to_remove(list_checkpoints(run), keep))
    if (auto problem = remove_checkpoint(folder)) problems.push_back(std::move(*problem));
  return problems;
}

// Temporary names are checkpoint-S.tmp-save, checkpoint-S.tmp-removed and the like.
void remove_leftovers(const fs::path& run) {
  std::error_code error;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(run, error)) {
    const std::string name = entry.path().filename().string();
    const size_t dot = name.find('.');
    if (dot != std::string::npos && step_of(name.substr(0, dot)) && name.substr(dot).starts_with(".tmp-"))
      left.push_back(entry.path());
  }
  for (const fs::path& folder : left) fs::remove_all(folder, error);  // after the listing: it must not change meanwhile
}

}  // namespace megalith::checkpoint
