#include "megalith/io/build_once.h"

#include "megalith/base/error.h"

namespace megalith::io {

namespace fs = std::filesystem;

bool build_once(const fs::path& target, const std::function<void()>& build, const LockWait& wait) {
  const fs::path lock_path = target.string() + ".lock";
  LockPatience patience(lock_path, "make " + target.filename().string(), wait);
  // Checks before and after taking the lock: most callers find the target and never touch the lock file.
  while (!fs::exists(target)) {
    const auto lock = FileLock::try_lock(lock_path);
    if (!lock) {
      patience.pause();
      continue;
    }
    if (fs::exists(target)) break;  // built by the last holder, after the check above
    build();
    check(fs::exists(target), "{} does not exist although it was just built", target.string());
    return true;
  }
  return false;
}

}  // namespace megalith::io
