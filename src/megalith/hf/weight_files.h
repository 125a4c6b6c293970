// WeightFiles: all tensors of a model folder, whichever files they lie in.
//
// Looked for in this order, as transformers does:
//   model.safetensors               everything in one file
//   model.safetensors.index.json    shards; weight_map says which tensor lies in which
//   model*.safetensors              shards without an index
//   *.safetensors                   the same under other names (adapters apart)
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megalith/hf/safetensors_file.h"

namespace megalith::hf {

// Shards that an index describes are opened when a tensor of theirs is first asked for, and stay mapped; without an
// index all are opened at once, for their names. All functions may be called from several threads.
class WeightFiles {
 public:
  // Throws DataError naming the folder and every shard that is missing, every tensor that two files hold and every name
  // that leads out of the folder; with the way to convert them when there are only pickle files.
  explicit WeightFiles(const std::filesystem::path& folder);
  // One file of the folder: an adapter's.
  WeightFiles(const std::filesystem::path& folder, const std::string& file);
  ~WeightFiles();

  const std::filesystem::path& folder() const { return folder_; }
  // Of every tensor, in alphabetical order. With an index only those that it lists.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(std::string_view name) const { return slot_of_.contains(name); }
  // nullptr when there is none of that name. Throws DataError when its file is broken or lacks tensors that the index
  // promises, naming all of them.
  const TensorInfo* find(std::string_view name) const;
  // For these three there must be one of that name, otherwise DataError. See SafetensorsFile.
  at::Tensor tensor(std::string_view name) const;
  void release(std::string_view name) const;
  std::filesystem::path file_of(std::string_view name) const;

  // Of all tensors. Opens every file.
  uint64_t total_bytes() const;

 private:
  struct Slot;
  void read_index(const std::filesystem::path& index);
  void read_all(const std::vector<std::string>& files);
  void finish();
  Slot& slot(std::string_view name) const;
  const SafetensorsFile& opened(Slot& slot) const;

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<Slot>> slots_;  // one a file
  std::vector<std::string> names_;
  std::unordered_map<std::string_view, size_t> slot_of_;  // by name, whose text is in names_
  mutable std::mutex opening_;                            // guards Slot::file of slots_
};

}  // namespace megalith::hf
