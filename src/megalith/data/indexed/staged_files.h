// StagedFiles: files that get their final names together, once all of them are complete.
//
//   StagedFiles files;
//   const io::FileHandle& bin = files.create(prefix + ".bin");
//   const io::FileHandle& idx = files.create(prefix + ".idx");
//   … write …
//   files.commit();
//
// Until then each is named <name>.tmp in the same folder. Files that are not committed are removed with the object,
// also when an exception is thrown. Files left by a killed process are overwritten by the next one that writes them.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "megalith/io/file_io.h"

namespace megalith::data {

// One thread creates and writes. commit() and discard() may be called from different threads; the later call does
// nothing.
class StagedFiles {
 public:
  StagedFiles() = default;
  ~StagedFiles();
  StagedFiles(const StagedFiles&) = delete;
  StagedFiles& operator=(const StagedFiles&) = delete;

  // Creates the target's folder and opens <target>.tmp for writing. Throws a ConfigError if another process is writing
  // that file, and a DataError if it cannot be created. The reference is valid until commit or discard.
  const io::FileHandle& create(const std::filesystem::path& target);

  // Syncs the content to disk, then renames the files in the order of their creation. Existing files of those names are
  // removed first, in reverse order, so that an old file never exists together with a new one.
  void commit();
  // Removes the files. May be called at any time before the object is destroyed, from any thread.
  void discard();

 private:
  // The lock on `handle` keeps another process from writing the same target.
  struct File {
    std::filesystem::path target, staged;
    io::FileHandle handle;
  };
  void remove_staged();  // requires the mutex

  std::mutex mutex_;  // guards the members below, and the renames as a whole
  std::vector<std::unique_ptr<File>> files_;
  bool ended_ = false;
};

}  // namespace megalith::data
