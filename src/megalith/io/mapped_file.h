// MappedFile: the bytes of a whole file, read through memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "megalith/io/file_io.h"

namespace megalith::io {

// Read-only. What is looked at comes from the page cache; nothing is copied. The file must not become shorter
// meanwhile: reading behind its new end ends the process with SIGBUS.
class MappedFile {
 public:
  // Both throw DataError when the file cannot be opened or mapped, or is no regular file.
  explicit MappedFile(const FileHandle& file);
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Requires offset + bytes <= size().
  std::string_view text(uint64_t offset, uint64_t bytes) const {
    return {reinterpret_cast<const char*>(data_) + offset, bytes};
  }

 private:
  const std::byte* data_ = nullptr;  // null for an empty file
  uint64_t size_ = 0;
};

}  // namespace megalith::io
