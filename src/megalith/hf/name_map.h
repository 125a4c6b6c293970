// NameMap: the names of a model's tensors in a family's checkpoints, stated once for reading, writing and every layout.
//
// Our names are the same for all families ("layers.3.attention.q.weight"); a rule says where such a tensor lies in the
// files. Patterns write {} for a number; a file name may also use {+n}, our number plus n. On our side all linear
// weights are [out, in].
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "megalith/hf/non_finite.h"
#include "megalith/hf/scale_block.h"
#include "megalith/hf/weight_files.h"
#include "megalith/parallel/sharded_tensor.h"

namespace megalith::hf {

// One tensor of the files and the tensors of ours that it holds.
struct NameRule {
  std::string theirs;                    // "model.layers.{}.self_attn.q_proj.weight"
  std::vector<std::string> ours;         // tensors that it holds, concatenated along the outputs; mostly one
  bool transposed = false;               // stored as [in, out]
  bool channelwise = false;              // stored as [out, 1, in]: a depthwise convolution
  std::vector<std::string> copies = {};  // names under which files repeat the tensor; written as well, never read
  // Stored for all experts of a layer as one tensor, [experts, out, in] or, transposed, [experts, in, out]: the last
  // number of `ours` is the index in it, and `theirs` has no place for that number.
  bool stacked = false;
  // Stored as [out, …these sizes], whose product is the number of inputs: the kernel of a convolution.
  std::vector<int64_t> kernel = {};
};

// All rules of a family.
struct NameMap {
  std::vector<NameRule> rules;
  std::vector<std::string> ignored;  // tensors in files that are not weights: buffers ("*.rotary_emb.inv_freq")
  // Tensors in files that belong to parts which are neither run nor trained: a vision tower ("model.visual.*"). Exports
  // copy them from the folder that the model was read from. A rule for such a tensor takes it off this list.
  std::vector<std::string> carried = {};
  std::string optional_prefix;  // prefix of the names in files, which some files omit
  // Set where the files keep weights in 8 bits with scales (block_scales.h); others may be among them.
  std::optional<ScaleBlock> scale_block = {};
};

// Returns the name in files of the tensor that holds one of ours; std::nullopt when no rule names it.
std::optional<std::string> their_name(const NameMap& map, std::string_view ours);

// A tensor of the model, whole.
struct GlobalTensor {
  std::string name;
  std::vector<int64_t> shape;
  bool buffer = false;  // stored in the files, but not trained
};

// A tensor of the files.
struct FileTensor {
  std::string name;
  std::vector<int64_t> shape;  // as stored
  // How the file stores it; see NameRule.
  bool transposed = false;
  bool channelwise = false;
  std::vector<std::string> copies;
  bool stacked = false;
  bool is_kernel = false;  // its rectangles are those of a matrix, [first dimension, product of the others]
};

// Returns a rectangle of one of our tensors as a view in the orientation of the file.
at::Tensor oriented(const FileTensor& file, const at::Tensor& ours);

// The map applied to the tensors of one model.
class TensorMapping {
 public:
  // Throws InternalError for a tensor that no rule names: the description of the family is incomplete.
  TensorMapping(const NameMap& map, const std::vector<GlobalTensor>& ours);

  // Every tensor of the files, in the order of the model's tensors.
  const std::vector<FileTensor>& files() const { return files_; }

  // The place of one of our rectangles in a tensor of the files.
  struct Place {
    const FileTensor* file = nullptr;
    std::vector<int64_t> offset;  // in the file's orientation
    at::Tensor data;              // the rectangle in the file's orientation: a view of its `local`
  };
  // Throws InternalError for a tensor that the model does not have.
  Place place(const parallel::ShardedTensor& ours) const;

  // Returns whether the model has a tensor of this name (one of ours).
  bool holds(const std::string& ours) const { return sources_.contains(ours); }

  // Returns the tensor of the files that holds our tensor of this name.
  const FileTensor& file_of(const std::string& ours) const;

  // Compares with the contents of a folder. Throws DataError that lists by name every tensor that is missing,
  // unexpected, of another shape or not of a floating-point type. Copies may be missing. `whose` completes the
  // message: it says which tensors were expected.
  void check_files(const WeightFiles& files,
                   std::string_view whose = "those of the model that config.json describes") const;
  // Does the same for the tensors that the folder has; others may be missing or unexpected.
  void check_stored(const WeightFiles& files) const;
  // Returns the tensors in a folder that are neither in files() nor copies of them nor ignored nor carried.
  std::vector<std::string> unexpected_in(const WeightFiles& files) const;
  // Returns the tensors in a folder that are carried (NameMap::carried).
  std::vector<std::string> carried_in(const WeightFiles& files) const;
  // Returns the name of one of files() in a folder: without the optional prefix if the folder omits it.
  std::string name_in(const WeightFiles& files, const std::string& name) const;
  // Returns whether the folder keeps the tensor of this name (as name_in returns it) in 8 bits with scales.
  bool is_scaled(const WeightFiles& files, const std::string& name) const;
  // Returns a tensor of a folder (as name_in returns it) as it is or, if it has scales, its values in `dtype`.
  at::Tensor values_in(const WeightFiles& files, const std::string& name, at::ScalarType dtype) const;
  // Copies rectangles out of the files, converting the type, and releases the pages it has read. Appends to `found` the
  // rectangles whose values are then not all finite; nullptr if nobody asks.
  void read(const WeightFiles& files, const std::vector<parallel::ShardedTensor>& into,
            std::vector<NonFiniteValues>* found = nullptr) const;

 private:
  // A tensor of ours inside a tensor of the files.
  struct Source {
    size_t file;
    int64_t first_row;  // along the outputs
    int64_t index = 0;  // in a stacked tensor
  };
  // Returns the tensors of a folder that are neither in files() nor copies of them nor ignored.
  std::vector<std::string> others_in(const WeightFiles& files) const;
  // Adds what is wrong with the scales of a tensor to one of the lists.
  void check_scales(const WeightFiles& files, const TensorInfo& weight, std::vector<std::string>& misshapen,
                    std::vector<std::string>& mistyped) const;
  // Returns a message with the tensors of the folder that have another shape or type; empty if there are none.
  std::string problems_of_stored(const WeightFiles& files) const;

  NameMap map_;
  std::vector<FileTensor> files_;
  std::unordered_map<std::string, Source> sources_;  // by our name
};

// "layers.3.mlp.up.weight" -> {"layers.{}.mlp.up.weight", {"3"}}
struct NamePattern {
  std::string pattern;
  std::vector<std::string> numbers;
};
// Replaces each word of digits by {}.
NamePattern pattern_of(std::string_view name);

}  // namespace megalith::hf
