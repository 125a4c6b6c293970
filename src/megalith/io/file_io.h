// Files through plain POSIX calls. Failures throw DataError with the file's name and the system's reason.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace megalith::io {

// An open file, closed on destruction.
class FileHandle {
 public:
  FileHandle() = default;
  ~FileHandle();
  // A moved-from handle is closed.
  FileHandle(FileHandle&& other) noexcept;
  FileHandle& operator=(FileHandle&& other) noexcept;

  // All four throw DataError if the file cannot be opened.
  static FileHandle open_for_reading(const std::filesystem::path& path);
  // Creates the file or truncates it.
  static FileHandle create(const std::filesystem::path& path);
  // Opens an existing file and keeps its content.
  static FileHandle open_for_writing(const std::filesystem::path& path);
  // Opens for writing, creating the file if needed; existing content is kept.
  static FileHandle open_or_create(const std::filesystem::path& path);

  // The descriptor stays owned by the handle; path() is the name it was opened under, for messages.
  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  const std::filesystem::path& path() const { return path_; }

  // Returns whether path() still names this file, which may have been removed, renamed or replaced.
  bool is_named() const;
  // Returns the size in bytes; throws for anything but a regular file.
  uint64_t size() const;
  // Writes all bytes at `offset`; safe from several threads at once.
  void write_at(uint64_t offset, const void* data, size_t bytes) const;
  // Makes the file `bytes` long and reserves the space where the file system can, so that a full disk is noticed
  // before the work is done.
  void allocate(uint64_t bytes) const;
  // Returns once the content is on disk (fsync).
  void sync() const;

 private:
  FileHandle(const std::filesystem::path& path, int flags, const char* purpose);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

// Returns the whole file; throws if it has more than `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes);
// Writes the file and syncs it.
void write_text_file(const std::filesystem::path& path, std::string_view text);
// Does the same through `<path>.tmp` and a rename, so that a reader, or a crash, finds either the old content or the
// new one. For one writer at a time.
void replace_text_file(const std::filesystem::path& path, std::string_view text);
// Creates the folder and its parents unless they exist.
void make_folders(const std::filesystem::path& folder);
// Makes the names in a folder survive a crash, as sync() does for a file's content.
void sync_folder(const std::filesystem::path& folder);

}  // namespace megalith::io
