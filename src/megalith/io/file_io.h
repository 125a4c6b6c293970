// Files through plain POSIX calls, with failures that name the file and say what the system said. All throw DataError.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace megalith::io {

// An open file; closes itself.
class FileHandle {
 public:
  FileHandle() = default;
  ~FileHandle();
  FileHandle(FileHandle&& other) noexcept;
  FileHandle& operator=(FileHandle&& other) noexcept;

  static FileHandle open_for_reading(const std::filesystem::path& path);
  // Empties a file that is there.
  static FileHandle create(const std::filesystem::path& path);
  // The file is there; its content stays.
  static FileHandle open_for_writing(const std::filesystem::path& path);
  // For writing; the content of a file that is there stays.
  static FileHandle open_or_create(const std::filesystem::path& path);

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }
  const std::filesystem::path& path() const { return path_; }

  // Whether path() still names this file: it may have been removed, renamed or replaced.
  bool is_named() const;
  // Of a regular file; anything else is refused.
  uint64_t size() const;
  void write_at(uint64_t offset, const void* data, size_t bytes) const;
  // Makes the file `bytes` long and has the file system set the room aside where it can, so that a full disk is found
  // before the work is done.
  void allocate(uint64_t bytes) const;
  // Returns when the content is on the disk.
  void sync() const;

 private:
  FileHandle(const std::filesystem::path& path, int flags, const char* purpose);

  std::filesystem::path path_;
  int descriptor_ = -1;
};

// The whole file; one of more than `max_bytes` is refused.
std::string read_text_file(const std::filesystem::path& path, uint64_t max_bytes);
// Writes and syncs.
void write_text_file(const std::filesystem::path& path, std::string_view text);
// The same through `<path>.tmp` and a rename: a reader, or a crash, finds the old content or the new one. One writer.
void replace_text_file(const std::filesystem::path& path, std::string_view text);
// Makes the folder and its parents; one that is there is fine.
void make_folders(const std::filesystem::path& folder);
// Makes the names in a folder survive a crash: what sync() does for a file's content.
void sync_folder(const std::filesystem::path& folder);

}  // namespace megalith::io
