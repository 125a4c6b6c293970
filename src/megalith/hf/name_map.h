// NameMap: how a family's checkpoint calls the model's tensors, stated once for both directions and for every layout.
//
// Our names are the same for all families ("layers.3.attention.q.weight"); a rule says where such a tensor lies in the
// files. Numbers in names are written {}, in theirs also {+n}: our number plus n. All linear weights are [out, in] on
// our side.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megalith/hf/weight_files.h"
#include "megalith/parallel/sharded_tensor.h"

namespace megalith::hf {

struct NameRule {
  std::string theirs;                    // "model.layers.{}.self_attn.q_proj.weight"
  std::vector<std::string> ours;         // what that tensor holds, one behind the other along the outputs; mostly one
  bool transposed = false;               // stored as [in, out]
  bool channelwise = false;              // stored as [out, 1, in]: a convolution of each channel alone
  std::vector<std::string> copies = {};  // names under which files repeat the tensor; written as well, never read
};

struct NameMap {
  std::vector<NameRule> rules;
  std::vector<std::string> ignored;  // tensors in files that are no weights: buffers ("*.rotary_emb.inv_freq")
  std::string optional_prefix;       // of their names; some files lack it
};

// What files call the tensor that holds one of ours; nothing: no rule names it.
std::optional<std::string> their_name(const NameMap& map, std::string_view ours);

// A tensor of the model, whole.
struct GlobalTensor {
  std::string name;
  std::vector<int64_t> shape;
  bool buffer = false;  // in the files, but not trained
};

// A tensor of the files.
struct FileTensor {
  std::string name;
  std::vector<int64_t> shape;  // as stored
  bool transposed = false;
  bool channelwise = false;
  std::vector<std::string> copies;
};

// The map applied to the tensors of one model.
class TensorMapping {
 public:
  // Throws InternalError for a tensor that no rule names: a family description that is not complete.
  TensorMapping(const NameMap& map, const std::vector<GlobalTensor>& ours);

  // Every tensor of the files, in the order of the model's.
  const std::vector<FileTensor>& files() const { return files_; }

  // Where a rectangle of ours lies in a tensor of theirs.
  struct Place {
    const FileTensor* file = nullptr;
    std::vector<int64_t> offset;  // in the file's orientation
    at::Tensor data;              // the rectangle in the file's orientation: a view of its `local`
  };
  Place place(const parallel::ShardedTensor& ours) const;

  // Whether the model that the mapping was made for has a tensor of this name (ours).
  bool holds(const std::string& ours) const { return sources_.contains(ours); }

  // The tensor of the files that holds the one of this name (ours).
  const FileTensor& file_of(const std::string& ours) const;

  // Compares with what a folder holds: DataError listing every tensor that is missing, unexpected, of another shape or
  // not of a floating-point type, by name. Copies may be missing. `whose`: what the message says they should be.
  void check_files(const WeightFiles& files,
                   std::string_view whose = "those of the model that config.json describes") const;
  // How a folder spells one of files(): without the optional prefix where it lacks that.
  std::string name_in(const WeightFiles& files, const std::string& name) const;
  // Copies rectangles out of the files (converting the type) and lets go of the pages read.
  void read(const WeightFiles& files, const std::vector<parallel::ShardedTensor>& into) const;

 private:
  struct Source {
    size_t file;
    int64_t first_row;  // along the outputs
  };

  NameMap map_;
  std::vector<FileTensor> files_;
  std::unordered_map<std::string, Source> sources_;  // by our name
};

// "layers.3.mlp.up.weight" -> {"layers.{}.mlp.up.weight", {"3"}}
struct NamePattern {
  std::string pattern;
  std::vector<std::string> numbers;
};
NamePattern pattern_of(std::string_view name);

}  // namespace megalith::hf
