// Opens the weights of an adapter under the names that Megalith's own files have, whichever program wrote them.
//
//   in a file of peft's                               presented as
//   ….mlp.experts.base_layer.lora_A.weight [n r, i]   ….mlp.experts.E.gate_proj.lora_A.weight [r, i]; up_proj likewise
//   ….mlp.experts.base_layer.lora_B.weight [2 o, r n] ….mlp.experts.E.gate_proj.lora_B.weight [o, r]; up_proj likewise
//   ….mlp.experts.lora_A.weight, ….lora_B.weight      ….mlp.experts.E.down_proj.…
//   ….embed_tokens.base_layer.weight                  model.embed_tokens.weight, not listed
//   ….q_proj.base_layer.bias                          ….q_proj.bias
//   ….modules_to_save.bias, ….original_module.bias    not listed: copies beside the bias of a module to save
//   ….mlp.gate.… of mixtral                           ….block_sparse_moe.gate.…
//   model.layers.…, visual.… of models that see       model.language_model.layers.…, model.visual.…
//
// n is the number of experts. peft joins the factors of gate_up_proj and down_proj of all experts: rows of A by expert,
// columns of B by rank and then by expert. It nests one in the other, so that gate_up_proj is the base layer of
// down_proj where both are targets. Views of the mapped file are presented; nothing is copied.
#pragma once

#include <filesystem>
#include <memory>

#include "megalith/hf/name_map.h"
#include "megalith/hf/weight_files.h"
#include "megalith/peft/adapter_config.h"

namespace megalith::peft {

// `names` is the name map of the family, `config` the folder's. A tensor that cannot be presented keeps its name, so
// that it is reported as unexpected.
std::unique_ptr<hf::WeightFiles> open_adapter(const std::filesystem::path& folder, const AdapterConfig& config,
                                              const hf::NameMap& names);

// Opens the factors with which an adapter with AdapterConfig::pissa started: adapter_init.safetensors, which has the
// same names as the adapter's own file. Returns nullptr when the folder has none and they follow from the weights: the
// exact decomposition is unique. Throws ConfigError when they do not, because they were found with random numbers.
std::unique_ptr<hf::WeightFiles> open_start(const std::filesystem::path& folder, const AdapterConfig& config);

}  // namespace megalith::peft
