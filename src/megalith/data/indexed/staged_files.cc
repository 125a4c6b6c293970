// Order on disk: contents are synced, old files of the final names are removed (last created first), the new ones are
// renamed (first created first), and the folder is synced. A crash before the renames leaves only .tmp files; one in
// between leaves some new files and no old ones, so a .bin never meets the .idx of another run.
#include "megalith/data/indexed/staged_files.h"

#include <sys/file.h>

#include <ranges>
#include <system_error>

#include "megalith/base/error.h"

namespace megalith::data {

namespace fs = std::filesystem;

StagedFiles::~StagedFiles() { discard(); }

const io::FileHandle& StagedFiles::create(const fs::path& target) {
  auto file = std::make_unique<File>();
  file->target = target;
  file->staged = target.string() + ".tmp";
  std::error_code error;
  if (target.has_parent_path()) fs::create_directories(target.parent_path(), error);
  check<DataError>(!error, "cannot create the folder {}: {}", target.parent_path().string(), error.message());
  // The file is truncated only after the lock shows that no other process uses it. The lock ends with the process,
  // however that ends. is_named(): the file may have been renamed or removed between open and lock.
  file->handle = io::FileHandle::open_or_create(file->staged);
  check<ConfigError>(::flock(file->handle.descriptor(), LOCK_EX | LOCK_NB) == 0 && file->handle.is_named(),
                     "{} is being written by another process; wait for it or choose another output", target.string());
  file->handle.allocate(0);
  const std::lock_guard lock(mutex_);
  check<DataError>(!ended_, "writing {} was interrupted", target.string());
  files_.push_back(std::move(file));
  return files_.back()->handle;
}

// Syncs before it takes the lock, so that discard() on another thread (an interrupt) does not wait for the disk.
void StagedFiles::commit() {
  for (const auto& file : files_) file->handle.sync();
  const std::lock_guard lock(mutex_);
  if (ended_ || files_.empty()) return;
  std::error_code error;
  for (const auto& file : std::views::reverse(files_)) fs::remove(file->target, error);
  for (const auto& file : files_) {
    fs::rename(file->staged, file->target, error);
    check<DataError>(!error, "cannot rename {} to {}: {}", file->staged.string(), file->target.string(),
                     error.message());
  }
  ended_ = true;
  for (const auto& file : files_) io::sync_folder(file->target.has_parent_path() ? file->target.parent_path() : ".");
  files_.clear();
}

// Also called from the thread that handles signals, while another one writes: the open handles stay valid.
void StagedFiles::discard() {
  const std::lock_guard lock(mutex_);
  if (!ended_) remove_staged();
  ended_ = true;
}

void StagedFiles::remove_staged() {
  for (const auto& file : files_) {
    std::error_code ignored;
    fs::remove(file->staged, ignored);
  }
}

}  // namespace megalith::data
