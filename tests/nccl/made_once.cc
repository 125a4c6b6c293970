#include "tests/nccl/made_once.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "megalith/base/error.h"

namespace megalith::testing {

namespace {

namespace fs = std::filesystem;

// Held by one process at a time.
class FolderLock {
 public:
  explicit FolderLock(const fs::path& path) : file_(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)) {
    check(file_ >= 0, "cannot open {}: {}", path.string(), std::strerror(errno));
    while (::flock(file_, LOCK_EX) != 0)
      check(errno == EINTR, "cannot lock {}: {}", path.string(), std::strerror(errno));
  }
  ~FolderLock() { ::close(file_); }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  const int file_;
};

std::string stamp_of(const fs::path& program) {
  return fmt::format("{:x}-{:x}", fs::file_size(program),
                     fs::last_write_time(program).time_since_epoch() / std::chrono::milliseconds(1));
}

// The folder of this build below `root`; whatever an earlier build has left there goes.
fs::path folder_of_build(const fs::path& root) {
  const std::string name = stamp_of(MEGALITH_PROGRAM) + "-" + stamp_of(fs::read_symlink("/proc/self/exe"));
  fs::create_directories(root);
  const FolderLock lock(root / "lock");
  for (const auto& entry : fs::directory_iterator(root)) {
    std::error_code ignored;
    if (entry.is_directory() && entry.path().filename() != name) fs::remove_all(entry.path(), ignored);
  }
  fs::create_directories(root / name);
  return root / name;
}

}  // namespace

fs::path cache_folder() {
  static const fs::path folder = [] {
    const char* chosen = std::getenv("MEGALITH_NCCL_CACHE");
    return folder_of_build(chosen != nullptr && *chosen != '\0' ? chosen : MEGALITH_NCCL_CACHE_FOLDER);
  }();
  return folder;
}

fs::path made_once(const std::string& name, const std::function<void(const fs::path& empty)>& make) {
  const fs::path done = cache_folder() / name, partial = cache_folder() / (name + ".partial");
  if (fs::exists(done)) return done;
  const FolderLock lock(cache_folder() / (name + ".lock"));
  if (fs::exists(done)) return done;
  fs::remove_all(partial);
  fs::create_directories(partial);
  make(partial);
  fs::rename(partial, done);
  return done;
}

}  // namespace megalith::testing
