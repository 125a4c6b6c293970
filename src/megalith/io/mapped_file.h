// MappedFile: the bytes of a whole file, mapped into memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "megalith/io/file_io.h"

namespace megalith::io {

// Read-only. Pages come from the page cache when they are touched; nothing is copied. The file must not shrink while it
// is mapped: reading past its new end kills the process with SIGBUS.
class MappedFile {
 public:
  // Both throw DataError when the file cannot be opened or mapped, or is not a regular file.
  explicit MappedFile(const FileHandle& file);
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // The whole file; the address stays the same as long as the object lives.
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
