// FileLock: lets one process at a time do something whose result the others wait for.
//
//   LockPatience patience(path, "build the index", {});
//   while (!exists(result)) {
//     if (const auto lock = FileLock::try_lock(path)) { build(); break; }
//     patience.pause();
//   }
//
// build_once (build_once.h) is this loop, ready to use.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>

#include "megalith/io/file_io.h"

namespace megalith::io {

// Held from try_lock to destruction, by one thread of one process: threads exclude each other as processes do. It is
// an flock(2), which ends with the process in any case, so a dead process blocks nobody. The file names the holder and
// is removed with the object.
class FileLock {
 public:
  // Returns std::nullopt while somebody else holds the lock. Creates the folder. Throws DataError when the file cannot
  // be created or locked.
  static std::optional<FileLock> try_lock(const std::filesystem::path& path);
  // Returns "process 4711 on node3", as the holder wrote it; for messages.
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
  std::chrono::milliseconds notice = std::chrono::seconds(5);  // interval between log lines
};

// Sleeps between attempts to get a lock and logs what is being waited for.
class LockPatience {
 public:
  // `what` completes "waiting for <holder> to …": "build the indices of the dataset".
  LockPatience(std::filesystem::path lock, std::string what, const LockWait& wait)
      : lock_(std::move(lock)), what_(std::move(what)), wait_(wait) {}

  // Sleeps a while, 5 ms at first and up to 500 ms. After the limit, throws DataError naming the lock and its holder.
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
