// WeightFiles: all tensors of a model folder, in whichever files they lie.
//
// Looked for in this order, as transformers does:
//   model.safetensors               everything in one file
//   model.safetensors.index.json    shards; weight_map says which tensor lies in which
//   model*.safetensors              shards without an index
//   *.safetensors                   the same under other names (adapters apart)
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "megalith/hf/safetensors_file.h"
#include "megalith/ops/quantize/quantized.h"

namespace megalith::hf {

// Returns whether a path from an index stays inside the folder.
bool stays_inside(const std::filesystem::path& file);
// Returns whether a folder holds safetensors files of a model, or their index.
bool has_weight_files(const std::filesystem::path& folder);

// With an index, a shard is opened when one of its tensors is first requested, and stays mapped. Without an index all
// files are opened at once, to learn their names. All functions may be called from several threads.
class WeightFiles {
 public:
  // Throws DataError naming the folder and every shard that is missing, every tensor that is in two files and every
  // name that leads out of the folder. If there are only pickle files, the message shows how to convert them.
  explicit WeightFiles(const std::filesystem::path& folder);
  // Opens a single file of the folder, as for an adapter.
  WeightFiles(const std::filesystem::path& folder, const std::string& file);
  ~WeightFiles();

  const std::filesystem::path& folder() const { return folder_; }
  // Names of all tensors in alphabetical order; with an index, only those that it lists.
  const std::vector<std::string>& names() const { return names_; }
  bool contains(std::string_view name) const { return slot_of_.contains(name) || views_.contains(name); }
  // Returns nullptr when there is none of that name. Throws DataError when its file is broken or lacks tensors that the
  // index lists, naming all of them.
  const TensorInfo* find(std::string_view name) const;
  // These three throw DataError when there is no tensor of that name. See SafetensorsFile.
  at::Tensor tensor(std::string_view name) const;
  void release(std::string_view name) const;
  std::filesystem::path file_of(std::string_view name) const;

  // Returns a weight that bitsandbytes has quantized to 4 or 8 bits (four_bit_files.h, eight_bit_files.h), on the host;
  // std::nullopt for other tensors. The functions above treat it as a tensor of numbers, which tensor() makes each
  // time.
  std::optional<ops::QuantizedTensor> quantized(std::string_view name) const;

  // Returns the bytes of all tensors together. Opens every file.
  uint64_t total_bytes() const;

  // A tensor that is made of another one, for files that keep tensors in another form than their reader expects.
  struct View {
    std::string name, of;
    std::function<at::Tensor(const at::Tensor&)> view;  // makes it of the tensor `of`, without copying
    bool listed = true;                                 // in names()
  };
  // Adds views, and takes the tensors that they are made of off the list. Called before other threads use the object.
  void add_views(const std::vector<View>& views);

 private:
  struct Slot;
  // A view, and its name, type and shape; the bytes are those of the tensor that it is made of.
  struct KnownView {
    View view;
    TensorInfo info;
  };
  // A quantized weight.
  struct KnownQuantized {
    TensorInfo info;                 // how it is shown
    std::vector<std::string> parts;  // other tensors that belong to it
    std::function<ops::QuantizedTensor()> read;
  };
  // The two ways of filling slots_; finish() builds the tables from them.
  void read_index(const std::filesystem::path& index);
  void read_all(const std::vector<std::string>& files);
  void finish();
  void find_quantized();  // opens the files that describe quantized weights
  // Return the weight in 4 bits that `state` describes, and the one in 8 bits that `scales` belong to.
  KnownQuantized known_four_bit(const std::string& name, const std::string& state) const;
  KnownQuantized known_eight_bit(const std::string& name, const std::string& scales) const;
  // Returns a tensor as its file holds it.
  at::Tensor stored(std::string_view name) const { return opened(slot(name)).tensor(name); }
  Slot& slot(std::string_view name) const;
  const SafetensorsFile& opened(Slot& slot) const;

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<Slot>> slots_;  // one per file
  std::vector<std::string> names_;
  std::map<std::string, size_t, std::less<>> slot_of_;            // name -> index in slots_
  std::map<std::string, KnownView, std::less<>> views_;           // by name
  std::map<std::string, KnownQuantized, std::less<>> quantized_;  // by name
  mutable std::mutex opening_;                                    // guards Slot::file of slots_
};

}  // namespace megalith::hf
