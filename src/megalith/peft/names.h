// Names in adapters: maps the names of a family's tensors (hf::NameMap) to the names that peft gives to their updates,
// and the module names that a user writes to tensors. No other file knows both.
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

// "layers.3.attention.q.weight" -> "layers.3.attention.q.lora_a", lora_b, and lora_m for the magnitudes.
std::string a_name(std::string_view weight);
std::string b_name(std::string_view weight);
std::string m_name(std::string_view weight);

// Returns the module that holds a tensor of ours; empty when no rule names it.
std::string module_of(const hf::NameMap& names, std::string_view ours);

// Follows peft's rule: a module to save is named by any end of its name, and all modules inside it are saved with it
// ("visual.merger" for "model.visual.merger.mlp.0"). targets.h has the rules for updates.
bool is_saved(std::string_view module, const AdapterConfig& config);

// Returns whether the adapter trains a tensor of ours as a whole: its module is to be saved, or it is a bias that is
// trained (AdapterConfig::biases).
bool trains_whole(const hf::NameMap& names, std::string_view ours, const AdapterConfig& config);

// The names in adapter files of everything that belongs to one tensor of the base model.
struct UpdateNames {
  std::string whole;               // base_model.model.<tensor>: saved as a whole
  std::string a, b;                // base_model.model.<module>.lora_A.weight [r, i], ….lora_B.weight [o, r]
  std::string magnitude;           // base_model.model.<module>.lora_magnitude_vector [o]
  std::string lookup_a, lookup_b;  // base_model.model.<module>.lora_embedding_A [r, v], ….lora_embedding_B [h, r]
};
// All but `whole` are empty for a tensor that is not a weight.
UpdateNames update_names(const std::string& tensor);

// Returns the name that peft gives to a tensor which update_names calls `whole`: the bias of a module with an update is
// base_model.model.<module>.base_layer.bias, and a module to save has its name in transformers. open_adapter
// (adapter_files.h) undoes it.
std::string written_name(const hf::NameMap& names, const std::string& whole, const AdapterConfig& config);

// Returns the name map of a family's adapters: A, B and magnitudes of each tensor that can have them, modules to save
// and biases.
hf::NameMap adapter_names(const hf::NameMap& base);

// A tensor of the model and its use.
struct Weight {
  std::string name;  // ours
  nn::WeightUse use;
};
// Returns the configuration with "all" and "all-linear" replaced by the names of all linear layers except the head and
// routers. `weights` lists the whole model. Throws ConfigError for a name that no module has, suggesting the nearest;
// for modules that cannot have a low-rank update (norms); for patterns and tensors that match nothing; and for only one
// of two tied modules.
AdapterConfig with_targets(AdapterConfig config, const hf::NameMap& names, const std::vector<Weight>& weights);

}  // namespace megalith::peft
