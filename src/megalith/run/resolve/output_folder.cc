// Checks the output folder before ranks exist, without creating it: a run that is refused leaves nothing on the disk.
#include "megalith/run/resolve/output_folder.h"

#include <unistd.h>

#include <algorithm>

#include "megalith/base/error.h"
#include "megalith/train/run_checkpoint.h"

namespace megalith::run {

namespace {

namespace fs = std::filesystem;

// Returns whether a folder is empty, apart from logs of runs that never began.
bool holds_nothing(const fs::path& folder) {
  return std::ranges::all_of(fs::directory_iterator(folder),
                             [](const fs::directory_entry& entry) { return entry.path().filename() == "log"; });
}

// Returns the folder itself, or its nearest existing parent.
fs::path nearest_existing(const fs::path& folder) {
  std::error_code unreadable;
  fs::path at = fs::absolute(folder);
  while (!fs::exists(at, unreadable) && at.has_relative_path()) at = at.parent_path();
  return at;
}

}  // namespace

void check_output_folder(const OutputSettings& output, bool begins_run) {
  const fs::path& folder = output.folder;
  if (folder.empty()) return;
  const fs::path nearest = nearest_existing(folder);
  const bool exists = nearest == fs::absolute(folder);
  check<ConfigError>(fs::is_directory(nearest), "output_dir {} cannot be made: {}", folder.string(),
                     exists ? "there is a file of that name" : fmt::format("{} is a file", nearest.string()));
  check<ConfigError>(::access(nearest.c_str(), W_OK | X_OK) == 0, "output_dir {} is not writable for this user{}",
                     folder.string(), exists ? "" : fmt::format(": {} is not", nearest.string()));
  // A launcher's restart finds the files of its own run there; only a new run needs an empty folder.
  const bool is_free = !exists || !begins_run || output.overwrites || output.continues || holds_nothing(folder);
  check<ConfigError>(is_free || earlier_run(folder) == EarlierRun::kStarted,
                     "output_dir {} is not empty; choose another one, continue its run with resume_from_checkpoint"
                     " (pretrain: load), or set overwrite_output_dir to start over in it",
                     folder.string());
}

void make_output_folder(const OutputSettings& output) {
  if (output.folder.empty()) return;
  std::error_code error;
  fs::create_directories(output.folder, error);
  check<ConfigError>(!error && fs::is_directory(output.folder), "output_dir {} cannot be made: {}",
                     output.folder.string(), error ? error.message() : "there is a file of that name");
}

// A run writes args.yaml before its first step.
EarlierRun earlier_run(const fs::path& folder) {
  if (holds_checkpoints(folder)) return EarlierRun::kSaved;
  if (!fs::is_regular_file(folder / train::kArgumentsFile)) return EarlierRun::kNone;
  const bool has_weights = std::ranges::any_of(fs::directory_iterator(folder), [](const fs::directory_entry& entry) {
    return entry.path().extension() == ".safetensors";
  });
  return has_weights ? EarlierRun::kEnded : EarlierRun::kStarted;
}

bool holds_checkpoints(const fs::path& folder) {
  return fs::is_directory(folder) && std::ranges::any_of(fs::directory_iterator(folder), [](const auto& entry) {
           return entry.path().filename().string().starts_with("checkpoint-");
         });
}

}  // namespace megalith::run
