// Decides which tensors of a model an adapter updates, and with what rank and scale, by peft's rules.
//
//   named as                     field of adapter_config.json        example
//   module                       target_modules                      model.layers.3.self_attn.q_proj
//   tensor of such a module      target_parameters                   model.layers.0.mlp.gate_proj.weight
//   tensor of all experts        target_parameters                   model.layers.3.mlp.experts.gate_up_proj
//
// transformers 5 keeps the experts of a layer in two tensors, gate_up_proj and down_proj. Ours, like the files, have
// one of each kind for every expert. A file that peft writes has one pair of factors for such a tensor
// (adapter_files.h); ours has a pair for every expert and projection, and peft joins those itself: the rank of
// gate_up_proj is then the sum of the ranks of both halves.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "megalith/hf/name_map.h"
#include "megalith/peft/adapter_config.h"

namespace megalith::peft {

// Returns the shortest end of a module's name that says what it is: its last word, or, where that is a number, the
// words from the last one that is not ("mlp.2").
std::string module_end(const std::string& module);
// Returns whether files keep the tensor as the kernel of a convolution, which has no low-rank update here.
bool is_kernel(const hf::NameMap& names, const std::string& tensor);
// Returns whether exclude_modules names a module, which is then never a target.
bool is_excluded(std::string_view module, const AdapterConfig& config);
// Returns whether target_modules and the fields that narrow it down (exclude_modules, layers_to_transform) select a
// module. A target is the name of a module or its end after a dot.
bool is_target(std::string_view module, const AdapterConfig& config);

// The update of one tensor.
struct Update {
  std::string module;  // tensors of one module share an A
  int64_t rank = 0;
  double scale = 1;
};
// Returns the update of a tensor in the base model's files, if it is a target of either kind. Throws ConfigError for an
// odd rank of gate_up_proj that cannot be halved.
std::optional<Update> update_of_file(const hf::NameMap& names, const std::string& tensor, const AdapterConfig& config);
// The same for a tensor of ours.
std::optional<Update> update_of(const hf::NameMap& names, std::string_view ours, const AdapterConfig& config);

// Returns whether a tensor in the base model's files is a bias that the adapter trains as a whole.
bool trains_bias_of_file(const hf::NameMap& names, const std::string& tensor, const AdapterConfig& config);
// The same for a tensor of ours.
bool trains_bias(const hf::NameMap& names, std::string_view ours, const AdapterConfig& config);

// A tensor of one expert in the files, as transformers 5 keeps it.
struct ExpertTensor {
  std::string parameter;   // "model.layers.3.mlp.experts.gate_up_proj"
  std::string projection;  // in the files: "up_proj"
  bool gate_or_up = false;
  bool up = false;  // the second half of gate_up_proj
};
// Returns std::nullopt for a tensor that does not belong to an expert.
std::optional<ExpertTensor> expert_tensor(const hf::NameMap& names, const std::string& tensor);
// Returns the name of a tensor of the files, or of its module, in transformers 5: mixtral's files call the block of
// experts otherwise. file_name is the inverse.
std::string transformers_name(std::string name);
std::string file_name(std::string name, const hf::NameMap& names);

// Returns the name of a tensor or module of a model that sees, as transformers 4.52 and later have it. Before, the
// language model and the tower stood at the top: "model.layers.…" and "visual.…" for
// "model.language_model.layers.…" and "model.visual.…". Names of other models, and newer ones, stay as they are.
std::string newer_name(std::string name, const hf::NameMap& names);
// Returns the configuration with such names in its lists and in the keys of its patterns. Expressions for whole names
// stay as they are.
AdapterConfig with_newer_names(AdapterConfig config, const hf::NameMap& names);

}  // namespace megalith::peft
