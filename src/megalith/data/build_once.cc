#include "megalith/data/build_once.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/base/log.h"

namespace megalith::data {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

// A lock on a file that is removed when the lock is given up. The system gives it up when the process ends.
class LockFile {
 public:
  explicit LockFile(fs::path path) : path_(std::move(path)) {}
  ~LockFile() {
    if (descriptor_ < 0) return;
    ::unlink(path_.c_str());  // still locked: nobody else holds this file
    ::close(descriptor_);
  }
  LockFile(const LockFile&) = delete;
  LockFile& operator=(const LockFile&) = delete;

  // False when somebody else has it.
  bool try_lock() {
    const int descriptor = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    check<DataError>(descriptor >= 0, "cannot make the lock {}: {}", path_.string(),
                     std::generic_category().message(errno));
    const bool locked = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0;
    // The holder before may have removed the file between opening and locking: then another one is under this name.
    struct stat held {};
    struct stat named {};
    const bool same = locked && ::fstat(descriptor, &held) == 0 && ::stat(path_.c_str(), &named) == 0 &&
                      held.st_ino == named.st_ino && held.st_dev == named.st_dev;
    if (same)
      descriptor_ = descriptor;
    else
      ::close(descriptor);
    return same;
  }

 private:
  fs::path path_;
  int descriptor_ = -1;
};

}  // namespace

bool build_once(const fs::path& target, const std::function<void()>& build, const BuildOnceOptions& options) {
  if (fs::exists(target)) return false;
  if (target.has_parent_path()) fs::create_directories(target.parent_path());
  const fs::path lock_path = target.string() + ".lock";
  LockFile lock(lock_path);
  const Clock::time_point start = Clock::now();
  Clock::time_point next_message = start + std::chrono::seconds(2);
  while (!lock.try_lock()) {
    if (fs::exists(target)) return false;
    const Clock::time_point now = Clock::now();
    const auto waited = std::chrono::duration_cast<std::chrono::seconds>(now - start).count();
    check<DataError>(now - start < options.limit,
                     "waited {} s for another process to make {}; is it still at work? Its lock is {}", waited,
                     target.string(), lock_path.string());
    if (now >= next_message) {
      log_info("waiting for another rank to make {} ({} s)", target.string(), waited);
      next_message = now + options.message_every;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  if (fs::exists(target)) return false;
  build();
  check(fs::exists(target), "{} was built and is not there", target.string());
  return true;
}

}  // namespace megalith::data
