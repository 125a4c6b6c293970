#include "megalith/io/mapped_file.h"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>

#include "megalith/base/error.h"

namespace megalith::io {

MappedFile::MappedFile(const FileHandle& file) : size_(file.size()) {
  // mmap rejects empty files.
  if (size_ == 0) return;
  void* at = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.descriptor(), 0);
  check<DataError>(at != MAP_FAILED, "cannot map {} ({} bytes) into memory: {}", file.path().string(), size_,
                   std::generic_category().message(errno));
  data_ = static_cast<const std::byte*>(at);
}

MappedFile::MappedFile(const std::filesystem::path& path) : MappedFile(FileHandle::open_for_reading(path)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace megalith::io
