// MegatronModel: the weights in a checkpoint of Megatron-Core, in whichever form they were saved.
//
// Tensors have the names of Megatron-Core's modules. Numbers of layers and experts count over the whole model:
//
//   decoder.layers.7.self_attention.linear_qkv.weight      decoder.layers.7.mlp.experts.3.linear_fc1.weight
#pragma once

#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <vector>

#include "megalith/hf/foreign/pickle_value.h"

namespace megalith::model {

class MegatronModel {
 public:
  virtual ~MegatronModel() = default;

  // Returns all names of weights.
  virtual std::vector<std::string> names() const = 0;
  virtual bool has(const std::string& name) const = 0;
  // Returns the type of a tensor that is there.
  virtual at::ScalarType dtype(const std::string& name) const = 0;
  // Returns what keeps a tensor from being put together as one of `shape`, whose first size may be -n for n or more;
  // empty if nothing does. The rows of each tensor-parallel rank consist of `parts` equal parts, of as many whole
  // matrices that follow one another: 2 for gate and up.
  virtual std::string problem(const std::string& name, const std::vector<int64_t>& shape, int64_t parts) const = 0;
  // Returns the whole tensor; requires that problem() returns an empty text.
  virtual at::Tensor whole(const std::string& name, const std::vector<int64_t>& shape, int64_t parts) const = 0;
  // Returns the arguments of the training that keep weights in a form which is not read.
  virtual std::vector<std::string> unread_arguments() const = 0;
  // Returns how many tensors and objects of the checkpoint are the state of an optimizer.
  virtual int64_t optimizer_tensors() const = 0;
};

// Finds unread_arguments() in what Megatron saved beside the weights.
inline std::vector<std::string> find_unread_arguments(const hf::PickleValue& saved) {
  std::vector<std::string> found;
  const hf::PickleValue* args = saved.find("args");
  for (const char* name : {"apply_layernorm_1p", "rotary_interleaved"})
    if (const hf::PickleValue* value = args ? args->find(name) : nullptr;
        value && value->is(hf::PickleValue::Kind::kBool) && value->integer != 0)
      found.emplace_back(name);
  return found;
}

// Returns a shape that problem() takes, for messages: "[64 or more, 32]".
inline std::string expected_in_words(const std::vector<int64_t>& shape) {
  std::vector<std::string> sizes;
  for (const int64_t size : shape)
    sizes.push_back(size < 0 ? fmt::format("{} or more", -size) : fmt::format("{}", size));
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

// Whether a name is that of an object which Transformer Engine keeps beside weights, or of a buffer.
inline bool is_megatron_extra(std::string_view name) {
  return name.find("_extra_state") != std::string_view::npos || name.ends_with(".inv_freq") ||
         name.ends_with(".local_tokens_per_expert") || name.ends_with(".global_tokens_per_expert");
}

}  // namespace megalith::model
