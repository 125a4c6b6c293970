// What the configurations and the names of the Llama-like families have in common.
#pragma once

#include "megalith/model/families/family.h"

namespace megalith::model {

// Sizes, norm, activation, rotary embedding, dropout, types: the keys that all of them spell alike.
ModelConfig read_decoder(const hf::JsonFields& config);
// `layer_types`, or the older use_sliding_window with max_window_layers (qwen).
std::vector<int64_t> read_windows(const hf::JsonFields& config, int64_t layers);
// rope_parameters (transformers 5), or rope_theta with rope_scaling. head_dim times the partial rotary factor rotates.
ops::RopeSettings read_rope(const hf::JsonFields& config, int64_t head_dim, int64_t max_positions);
ops::Activation read_activation(const hf::JsonFields& config, std::string_view key);
at::ScalarType read_dtype(const hf::JsonFields& config);

// model.embed_tokens, model.layers.N.self_attn.q_proj, …
hf::NameMap decoder_names();

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
