// What the configurations and the names of the Llama-like families have in common.
#pragma once

#include "megalith/model/families/family.h"

namespace megalith::model {

// Sizes, norm, activation, rotary embedding, dropout, types: the keys that all of them spell alike.
ModelConfig read_decoder(const io::JsonFields& config);
// `layer_types`, or the older use_sliding_window with max_window_layers (qwen).
std::vector<int64_t> read_windows(const io::JsonFields& config, int64_t layers);
// rope_parameters (transformers 5), or rope_theta with rope_scaling. head_dim times the partial rotary factor rotates.
ops::RopeSettings read_rope(const io::JsonFields& config, int64_t head_dim, int64_t max_positions);
ops::Activation read_activation(const io::JsonFields& config, std::string_view key);
at::ScalarType read_dtype(const io::JsonFields& config);

// model.embed_tokens, model.layers.N.self_attn.q_proj, …
hf::NameMap decoder_names();

// Adds to `names` those of multi-token-prediction layers that stand behind the model's own in its list:
// model.layers.N.enorm, hnorm, eh_proj, shared_head.norm, copies of the embedding and the head, and what every layer
// has.
void add_numbered_mtp_names(const ModelConfig& config, hf::NameMap& names);
// The rules of `names` for what every layer has, as rules for a multi-token-prediction layer whose names start with
// `prefix`.
std::vector<hf::NameRule> mtp_layer_rules(const hf::NameMap& names, const std::string& prefix);

Family deepseek_v3_family();
Family qwen3_next_family();
Family gpt2_family();
Family llama_family();
Family mistral_family();
Family qwen2_family();
Family qwen3_family();
Family seed_oss_family();
Family mixtral_family();
Family qwen2_moe_family();
Family qwen3_moe_family();
Family glm4_moe_family();

}  // namespace megalith::model
