// A run's folder may contain anything, also a link that somebody placed there to make the dashboard serve a private
// file of its owner. Checking a path before opening it would leave a gap in which it can be swapped; so the file is
// opened first, and then the kernel tells what was opened: its kind (fstat) and its true path (/proc/self/fd).
#include "megalith/observe/dashboard/inside_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "megalith/base/error.h"

namespace megalith::observe {

namespace fs = std::filesystem;

namespace {

constexpr int64_t kNanosecondsOfASecond = 1'000'000'000;

// Returns the path of the open file. The kernel is asked after the open, so that nobody can swap the name in between.
fs::path place_of(int descriptor) {
  std::error_code error;
  fs::path place = fs::read_symlink(fmt::format("/proc/self/fd/{}", descriptor), error);
  return error ? fs::path() : place;
}

// Compares path components, so that /runs/ab does not count as inside /runs/a.
bool lies_in(const fs::path& place, const fs::path& folder) {
  // An empty path (the kernel did not tell) has no components, and lies in no folder.
  const auto rest = std::mismatch(folder.begin(), folder.end(), place.begin(), place.end());
  return rest.first == folder.end();
}

}  // namespace

InsideFile::InsideFile(fs::path path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}

InsideFile::InsideFile(InsideFile&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)), version_(other.version_) {}

InsideFile::~InsideFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::optional<InsideFile> InsideFile::open(const fs::path& folder, const std::string& name) {
  const fs::path path = folder / name;
  // O_NONBLOCK: opening a FIFO would otherwise wait for a writer.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0 && (errno == ENOENT || errno == ENOTDIR)) return std::nullopt;
  check<DataError>(descriptor >= 0, "cannot read {}: {}", path.string(), std::strerror(errno));
  // From here on the object closes the descriptor, whatever throws.
  InsideFile file(path, descriptor);
  struct stat info {};
  const bool known = ::fstat(descriptor, &info) == 0;
  check<DataError>(known && S_ISREG(info.st_mode), "{} is not a regular file; it is not shown", path.string());
  check<DataError>(lies_in(place_of(descriptor), folder), "{} leads out of the run's folder; it is not shown",
                   path.string());
  file.version_ = {.device = info.st_dev,
                   .inode = info.st_ino,
                   .bytes = static_cast<uint64_t>(info.st_size),
                   .changed_ns = info.st_mtim.tv_sec * kNanosecondsOfASecond + info.st_mtim.tv_nsec};
  return file;
}

// pread may return less than asked for; only 0 means the end.
size_t InsideFile::read_at(uint64_t offset, char* to, size_t bytes) const {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::pread(descriptor_, to + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    check<DataError>(got >= 0, "cannot read {}: {}", path_.string(), std::strerror(errno));
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

std::string InsideFile::text(uint64_t most_bytes) const {
  check<DataError>(version_.bytes <= most_bytes, "{} has {} bytes; at most {} are shown", path_.string(),
                   version_.bytes, most_bytes);
  std::string content(version_.bytes, '\0');
  // A file that was cut meanwhile gives fewer bytes; one that grew gives those that it had.
  content.resize(read_at(0, content.data(), content.size()));
  return content;
}

}  // namespace megalith::observe
