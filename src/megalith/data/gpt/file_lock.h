// FileLock: one process at a time does something whose result the others wait for.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "megalith/hf/file_io.h"

namespace megalith::data {

// Held from construction by try_lock to destruction, by one thread of one process (threads count as processes here).
// The lock is flock's: it ends with the process however that ends, so a dead process holds nobody up. The file says who
// holds it and is removed with the object.
class FileLock {
 public:
  // Nothing when somebody else holds it. Makes the folder. Throws DataError when the file cannot be made or locked.
  static std::optional<FileLock> try_lock(const std::filesystem::path& path);
  // "process 4711 on node3", as the holder wrote it; for messages.
  static std::string holder(const std::filesystem::path& path);

  ~FileLock();
  FileLock(FileLock&& other) noexcept = default;
  FileLock& operator=(FileLock&&) = delete;

 private:
  explicit FileLock(hf::FileHandle file) : file_(std::move(file)) {}
  hf::FileHandle file_;
};

}  // namespace megalith::data
