// StagedFiles: files that get their names together, when all of them are complete.
//
//   StagedFiles files;
//   const io::FileHandle& bin = files.create(prefix + ".bin");
//   const io::FileHandle& idx = files.create(prefix + ".idx");
//   … write …
//   files.commit();
//
// Until then each lies beside its place as <name>.tmp. What is not committed is removed with the object, also when an
// exception passes. What a killed process left behind is overwritten by the next one that writes the same files.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <vector>

#include "megalith/io/file_io.h"

namespace megalith::data {

// One thread creates and writes. commit() and discard() may be called from different threads: the second of them does
// nothing.
class StagedFiles {
 public:
  StagedFiles() = default;
  ~StagedFiles();
  StagedFiles(const StagedFiles&) = delete;
  StagedFiles& operator=(const StagedFiles&) = delete;

  // Opens <target>.tmp for writing and makes the target's folder. Throws ConfigError when another process is writing
  // that file now, DataError when it cannot be created. The reference holds until commit or discard.
  const io::FileHandle& create(const std::filesystem::path& target);

  // Brings the content to the disk, then gives each file its name in the order of their creation. Files of those names
  // are removed before, the last one first, so that an old file never stands beside a new one.
  void commit();
  // Removes what was written. May be called at any time before the object ends, from any thread.
  void discard();

 private:
  struct File {
    std::filesystem::path target, staged;
    io::FileHandle handle;
  };
  void remove_staged();  // requires the mutex

  std::mutex mutex_;  // guards what follows, and the renames as a whole
  std::vector<std::unique_ptr<File>> files_;
  bool ended_ = false;
};

}  // namespace megalith::data
