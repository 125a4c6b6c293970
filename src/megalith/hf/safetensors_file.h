// SafetensorsFile: the tensors of one file, as views of its bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megalith/hf/safetensors_header.h"

namespace megalith::io {
class MappedFile;
}

namespace megalith::hf {

// Maps the file into memory, read only: pages are read on first access and can be dropped again. Constant after
// construction; all functions may be called from several threads.
//
// The file must not change while it is open: if another process truncates it, this process dies of SIGBUS.
class SafetensorsFile {
 public:
  // Reads and checks the header. Throws DataError naming the file and what is wrong with it.
  explicit SafetensorsFile(const std::filesystem::path& path);

  // The file that was opened.
  const std::filesystem::path& path() const { return path_; }
  // In the order of their bytes.
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }
  // nullptr when there is none of that name.
  const TensorInfo* find(std::string_view name) const;

  // Returns a view of the file's bytes, which may outlive this object (it keeps the mapping alive). Writing to it ends
  // the process with SIGSEGV: copy a tensor before changing it. A tensor that is not aligned to its elements, which
  // only old writers produce, is returned as a copy. Throws DataError when there is none of that name.
  at::Tensor tensor(std::string_view name) const;
  // Drops the tensor's pages from this process's memory. Meant for tensors that have been copied; later accesses, also
  // through existing views, read the pages again from the page cache or the file.
  void release(std::string_view name) const;

 private:
  // Like find(), but throws DataError.
  const TensorInfo& get(std::string_view name) const;
  const std::byte* bytes_of(const TensorInfo& info) const;

  std::filesystem::path path_;
  std::shared_ptr<const io::MappedFile> mapping_;  // shared with the views
  SafetensorsHeader header_;
  uint64_t data_offset_ = 0;                                // offset of the data in the file
  std::unordered_map<std::string_view, size_t> positions_;  // name -> index in header_.tensors, which owns the text
};

}  // namespace megalith::hf
