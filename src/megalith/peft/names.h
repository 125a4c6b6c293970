// Names of adapters: from what a family's files call its tensors (hf::NameMap) to what peft calls the updates of them,
// and from the names that a user gives to modules. The one place where both meet.
//
// A module is a tensor's name in the files without its last word: "model.layers.3.self_attn.q_proj".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "megalith/hf/name_map.h"
#include "megalith/nn/parameter/parameter.h"
#include "megalith/peft/adapter_config.h"

namespace megalith::peft {

// "layers.3.attention.q.weight" -> "layers.3.attention.q.lora_a", and lora_b.
std::string a_name(std::string_view weight);
std::string b_name(std::string_view weight);

// The module that holds a tensor of ours; empty: no rule names it.
std::string module_of(const hf::NameMap& names, std::string_view ours);

// peft's rules. Targets: the module's name, or its end behind a dot. Modules to save: its end.
bool is_target(std::string_view module, const AdapterConfig& config);
bool is_saved(std::string_view module, const AdapterConfig& config);

// What adapter files call what belongs to a tensor of the base model's.
struct UpdateNames {
  std::string whole;               // base_model.model.<tensor>: saved as a whole
  std::string a, b;                // base_model.model.<module>.lora_A.weight [r, i], ….lora_B.weight [o, r]
  std::string lookup_a, lookup_b;  // base_model.model.<module>.lora_embedding_A [r, v], ….lora_embedding_B [h, r]
};
// All but `whole` are empty for a tensor that is no weight.
UpdateNames update_names(const std::string& tensor);

// The names of every adapter of a family's models: A and B of each tensor that has them, and modules to save.
hf::NameMap adapter_names(const hf::NameMap& base);

// A tensor of the model and what is done with it.
struct Weight {
  std::string name;  // ours
  nn::WeightUse use;
};
// The configuration with "all" and "all-linear" replaced by the names of all linear layers but the head and routers.
// `weights`: the whole model. Throws ConfigError for a name that no module has, with the nearest that some have; for
// modules without an update of low rank (norms); for one of two tied modules alone.
AdapterConfig with_targets(AdapterConfig config, const hf::NameMap& names, const std::vector<Weight>& weights);

}  // namespace megalith::peft
