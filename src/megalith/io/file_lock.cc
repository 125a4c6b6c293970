// flock(2) locks the inode and not the name, so a lock is only good while the name still leads to it: the holder
// removes the file when it is done, and a waiter that opened it before must start over.
#include "megalith/io/file_lock.h"

#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <thread>

#include "megalith/base/error.h"
#include "megalith/base/log.h"

namespace megalith::io {

namespace fs = std::filesystem;

namespace {

// Written into the lock file, for the messages of those who wait.
std::string own_name() {
  std::array<char, 256> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
  return fmt::format("process {} on {}", ::getpid(), host.data());
}

// Creates the folder, because the lock often guards its first file.
FileHandle open_lock_file(const fs::path& path) {
  std::error_code error;
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), error);
  check<DataError>(!error, "the folder {} cannot be made: {}", path.parent_path().string(), error.message());
  return FileHandle::open_or_create(path);
}

}  // namespace

// Open, lock, and check that the path still leads to the locked file: its last holder unlinks it before the lock ends,
// and a lock on an unlinked file would exclude nobody.
std::optional<FileLock> FileLock::try_lock(const fs::path& path) {
  for (;;) {
    FileHandle file = open_lock_file(path);
    if (::flock(file.descriptor(), LOCK_EX | LOCK_NB) != 0) {
      check<DataError>(errno == EWOULDBLOCK, "{} cannot be locked: {}", path.string(),
                       std::generic_category().message(errno));
      return std::nullopt;
    }
    if (!file.is_named()) continue;  // the last holder removed it after we opened it: lock the new file
    const std::string name = own_name();
    file.allocate(0);
    file.write_at(0, name.data(), name.size());
    return FileLock(std::move(file));
  }
}

std::string FileLock::holder(const fs::path& path) {
  try {
    return read_text_file(path, 1000);
  } catch (const DataError&) {
    return "another process";  // the file was removed in the meantime
  }
}

// Unlinks before the descriptor is closed, so the file disappears while the lock is still held.
FileLock::~FileLock() {
  if (file_.is_open()) ::unlink(file_.path().c_str());
}

// Polls, since flock cannot wait with a time limit; the pause doubles up to half a second.
void LockPatience::pause() {
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start_);
  check<DataError>(
      waited < wait_.limit,
      "{}: waited {} s for {} to {}. If it is still working, start again when it has finished; if it is stuck, end it",
      lock_.string(), waited.count() / 1000, FileLock::holder(lock_), what_);
  if (waited >= next_notice_) {
    log_info("waiting for {} to {} ({} s; {})", FileLock::holder(lock_), what_, waited.count() / 1000, lock_.string());
    next_notice_ = waited + wait_.notice;
  }
  std::this_thread::sleep_for(sleep_);
  sleep_ = std::min(2 * sleep_, std::chrono::milliseconds(500));
}

}  // namespace megalith::io
