// Thin wrappers around open, pwrite, fsync and rename. Reads and writes continue after short transfers and EINTR; any
// other errno becomes a DataError that names the file. Writes are positional, so one handle can
// serve several threads. Durability takes two syncs: sync() for a file's content, sync_folder() for its name.
#include "megalith/io/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "megalith/base/error.h"

namespace megalith::io {
namespace {

// Throws DataError: "cannot <what> <path>: <reason of the system>", with advice for a full disk.
[[noreturn]] void fail(const char* what, const std::filesystem::path& path, int error) {
  // Out of space or over quota: the user can do something about it.
  const char* advice = error == ENOSPC || error == EDQUOT ? "; free some space or choose another folder" : "";
  throw DataError(
      fmt::format("cannot {} {}: {}{}", what, path.string(), std::generic_category().message(error), advice));
}

}  // namespace

FileHandle::FileHandle(const std::filesystem::path& path, int flags, const char* purpose)
    : path_(path), descriptor_(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
  if (descriptor_ < 0) fail(purpose, path, errno);
}

FileHandle::~FileHandle() {
  if (is_open()) ::close(descriptor_);
}

FileHandle::FileHandle(FileHandle&& other) noexcept
    : path_(std::move(other.path_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

// Swaps, so that `other` closes the old file when it is destroyed.
FileHandle& FileHandle::operator=(FileHandle&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

// O_CLOEXEC (set for all): ranks are forked, and must not inherit each other's files.
// O_NONBLOCK: a pipe would hold the open until somebody writes to it; size() then refuses it. Files do not notice.
FileHandle FileHandle::open_for_reading(const std::filesystem::path& path) {
  return {path, O_RDONLY | O_NONBLOCK, "read"};
}

FileHandle FileHandle::create(const std::filesystem::path& path) {
  return {path, O_WRONLY | O_CREAT | O_TRUNC, "create"};
}

FileHandle FileHandle::open_for_writing(const std::filesystem::path& path) { return {path, O_WRONLY, "write"}; }

FileHandle FileHandle::open_or_create(const std::filesystem::path& path) {
  return {path, O_WRONLY | O_CREAT, "create"};
}

// Compares the inode of the open descriptor with the one the path leads to now.
bool FileHandle::is_named() const {
  struct stat opened {
  }, named{};
  return ::fstat(descriptor_, &opened) == 0 && ::stat(path_.c_str(), &named) == 0 && opened.st_ino == named.st_ino &&
         opened.st_dev == named.st_dev;
}

uint64_t FileHandle::size() const {
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0) fail("look at", path_, errno);
  check<DataError>(S_ISREG(info.st_mode), "{} is a folder, a pipe or a device, not a file", path_.string());
  return static_cast<uint64_t>(info.st_size);
}

void FileHandle::write_at(uint64_t offset, const void* data, size_t bytes) const {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::pwrite(descriptor_, from, bytes, static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) fail("write", path_, written == 0 ? EIO : errno);
    from += written;
    offset += static_cast<uint64_t>(written);
    bytes -= static_cast<size_t>(written);
  }
}

// ftruncate alone would make a sparse file, which fails only when the data is written.
void FileHandle::allocate(uint64_t bytes) const {
  const auto length = static_cast<off_t>(bytes);
  if (::ftruncate(descriptor_, length) != 0) fail("write", path_, errno);
  // Some file systems cannot reserve space; there a full disk only shows up in write_at.
  int result = 0;
  do {
    result = bytes == 0 ? 0 : ::fallocate(descriptor_, 0, 0, length);
  } while (result != 0 && errno == EINTR);
  if (result != 0 && errno != EOPNOTSUPP && errno != ENOSYS) fail("write", path_, errno);
}

void FileHandle::sync() const {
  if (::fsync(descriptor_) != 0) fail("write", path_, errno);
}

// Reads up to the size seen at the start; a file that grows meanwhile is cut there.
std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes) {
  const FileHandle file = FileHandle::open_for_reading(path);
  const uint64_t bytes = file.size();
  check<DataError>(bytes <= max_bytes, "{} has {} bytes; at most {} are allowed, so it cannot be the right file",
                   path.string(), bytes, max_bytes);
  std::string text(bytes, '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = ::read(file.descriptor(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail("read", path, errno);
    if (got == 0) break;  // the file has shrunk since size()
    done += static_cast<size_t>(got);
  }
  text.resize(done);
  return text;
}

void write_text_file(const std::filesystem::path& path, std::string_view text) {
  const FileHandle file = FileHandle::create(path);
  file.write_at(0, text.data(), text.size());
  file.sync();
}

// Write, sync, rename: rename(2) is atomic, and the sync before it keeps a crash from leaving an empty file.
void replace_text_file(const std::filesystem::path& path, std::string_view text) {
  std::filesystem::path temporary = path;
  temporary += ".tmp";
  try {
    write_text_file(temporary, text);
    if (::rename(temporary.c_str(), path.c_str()) != 0) fail("replace", path, errno);
  } catch (...) {
    ::unlink(temporary.c_str());
    throw;
  }
}

void make_folders(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail("make the folder", folder, error.value());
}

void sync_folder(const std::filesystem::path& folder) { FileHandle::open_for_reading(folder).sync(); }

}  // namespace megalith::io
