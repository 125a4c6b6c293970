// FileLock: one process at a time does something whose result the others wait for.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "megalith/io/file_io.h"

namespace megalith::io {

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
  explicit FileLock(FileHandle file) : file_(std::move(file)) {}
  FileHandle file_;
};

// How long to wait for the holder of a lock.
struct LockWait {
  std::chrono::milliseconds limit = std::chrono::hours(1);
  std::chrono::milliseconds notice = std::chrono::seconds(5);  // the log says what is waited for, so often
};

// Sleeps between tries to get a lock and says what is waited for.
class LockPatience {
 public:
  // `what` the holder does: "build the indices of the dataset".
  LockPatience(std::filesystem::path lock, std::string what, const LockWait& wait)
      : lock_(std::move(lock)), what_(std::move(what)), wait_(wait) {}

  // Throws DataError, naming the lock and its holder, beyond the limit.
  void pause();

 private:
  using Clock = std::chrono::steady_clock;
  std::filesystem::path lock_;
  std::string what_;
  LockWait wait_;
  Clock::time_point start_ = Clock::now();
  std::chrono::milliseconds next_notice_ = wait_.notice;
  std::chrono::milliseconds sleep_{5};
};

}  // namespace megalith::io
