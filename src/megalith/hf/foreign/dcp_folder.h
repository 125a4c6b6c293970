// DcpFolder: a checkpoint of torch.distributed.checkpoint, and of what is built on it (Megatron's torch_dist).
//
//   .metadata         a pickle: the name, type and shape of every tensor, its chunks, and the file and bytes of each
//   __0_0.distcp …    the chunks, each as torch.save writes a tensor, one after another
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/hf/foreign/pickle_value.h"
#include "megalith/io/mapped_file.h"

namespace megalith::hf {

// Returns whether a folder is such a checkpoint.
bool is_dcp_folder(const std::filesystem::path& folder);

// A part of a tensor, and where it lies.
struct DcpChunk {
  std::vector<int64_t> offset, shape;
  std::string file;  // relative to the folder
  uint64_t begin = 0, bytes = 0;
};

// A tensor of the checkpoint.
struct DcpTensor {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape;
  std::vector<DcpChunk> chunks;
};

// Constant after construction, apart from files, which are mapped when first needed; read() may be called from several
// threads.
class DcpFolder {
 public:
  // Reads .metadata. Throws DataError naming what is damaged, every file that is missing or too short, and chunks that
  // were transformed (compressed) when they were written.
  explicit DcpFolder(const std::filesystem::path& folder);

  const std::filesystem::path& folder() const { return folder_; }
  // All tensors by name. Values that are not tensors are not listed.
  const std::map<std::string, DcpTensor, std::less<>>& tensors() const { return tensors_; }
  // Returns nullptr when there is no tensor of that name.
  const DcpTensor* find(std::string_view name) const;

  // Returns a copy of a rectangle of a tensor. Throws DataError when its chunks do not cover it, or are not what
  // .metadata says.
  at::Tensor read(std::string_view name, at::IntArrayRef offset, at::IntArrayRef shape) const;
  at::Tensor read(std::string_view name) const;

 private:
  void read_metadata(const PickleValue& root);
  void check_shards() const;
  std::shared_ptr<const io::MappedFile> mapped(const std::string& file) const;

  std::filesystem::path folder_;
  std::map<std::string, DcpTensor, std::less<>> tensors_;
  mutable std::mutex opening_;  // guards files_
  mutable std::map<std::string, std::shared_ptr<const io::MappedFile>> files_;
};

}  // namespace megalith::hf
