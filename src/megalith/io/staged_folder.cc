// Write elsewhere, sync, rename. Files go to <target>.tmp-<tag>; commit() syncs every file and folder below it before
// the rename, and the parent folder after it, so that after a crash the target is either complete or absent. Only the
// owner creates, renames and removes folders; the barriers are up to the caller.
#include "megalith/io/staged_folder.h"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <system_error>
#include <vector>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/io/file_io.h"
#include "megalith/io/staged_folder_internal.h"

namespace megalith::io {

namespace fs = std::filesystem;

namespace {

void rename_folder(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  check<DataError>(!error, "cannot rename {} to {}: {}", from.string(), to.string(), error.message());
}

// Swaps two names in one step; returns false where the file system cannot.
bool exchange(const fs::path& a, const fs::path& b) {
  return ::renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

void remove_folder(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  check<DataError>(!error, "cannot remove {}: {}", folder.string(), error.message());
}

// Syncs every file and folder below `folder`, and `folder` itself.
void sync_tree(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_symlink()) continue;
    if (entry.is_directory())
      sync_folder(entry.path());
    else
      FileHandle::open_for_reading(entry.path()).sync();
  }
  sync_folder(folder);
}

}  // namespace

StagedFolder::StagedFolder(const fs::path& target, const std::string& tag, StagedFolderOptions options)
    : options_(options) {
  check(!tag.empty() && tag.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") ==
                            std::string::npos,
        "\"{}\" cannot be part of a folder's name", tag);
  check<ConfigError>(!target.empty(), "the output folder has no name");
  // Follows links, so that their target is replaced rather than the link; "a/b/" means "a/b".
  target_ = (fs::weakly_canonical(fs::absolute(target)) / "").parent_path();
  staging_ = target_.string() + ".tmp-" + tag;
  old_ = target_.string() + ".old-" + tag;
  if (!options_.owner) return;
  check_target();
  remove_folder(staging_);
  make_folders(staging_);
}

// Errors are ignored: a destructor may run while another exception is in flight.
StagedFolder::~StagedFolder() {
  std::error_code ignored;
  if (options_.owner && !committed_) fs::remove_all(staging_, ignored);
}

// Refuses a target that holds something, unless it may be overwritten.
void StagedFolder::check_target() const {
  if (!fs::exists(target_)) return;
  check<ConfigError>(fs::is_directory(target_), "the output folder {} is a file; choose another", target_.string());
  if (options_.overwrite || fs::is_empty(target_)) return;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(target_)) names.push_back(entry.path().filename().string());
  throw ConfigError(
      fmt::format("the output folder {} exists and holds {}; choose another, or allow it to be overwritten",
                  target_.string(), list_in_words(names, 8)));
}

void StagedFolder::commit() {
  if (!options_.owner) return;
  check(!committed_, "{} is committed twice", staging_.string());
  check_target();  // again: something may have appeared there since
  sync_tree(staging_);
  // rename(2) replaces an empty folder by itself.
  if (fs::exists(target_) && !fs::is_empty(target_))
    replace_target();
  else
    rename_folder(staging_, target_);
  committed_ = true;
  sync_folder(target_.parent_path());
}

void StagedFolder::replace_target() const {
  if (exchange(staging_, target_))
    remove_folder(staging_);
  else
    replace_by_renames(staging_, target_, old_);
}

void replace_by_renames(const fs::path& staged, const fs::path& target, const fs::path& old) {
  // Between the two renames there is no target; a crash leaves both folders, under the names `old` and `staged`.
  remove_folder(old);
  rename_folder(target, old);
  try {
    rename_folder(staged, target);
  } catch (const DataError&) {
    rename_folder(old, target);
    throw;
  }
  remove_folder(old);
}

}  // namespace megalith::io
