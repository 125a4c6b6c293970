// Configuration keys and tensor names that the Llama-like families have in common.
#pragma once

#include "megalith/model/families/family.h"

namespace megalith::model {

// Reads the keys that all of them spell alike: sizes, norm, activation, rotary embedding, dropout, dtype.
ModelConfig read_decoder(const io::JsonFields& config);
// Reads the windows per layer from `layer_types`, or from the older use_sliding_window with max_window_layers (qwen).
std::vector<int64_t> read_windows(const io::JsonFields& config, int64_t layers);
// Reads rope_parameters (transformers 5), or rope_theta with rope_scaling. The first head_dim times the partial rotary
// factor channels rotate.
ops::RopeSettings read_rope(const io::JsonFields& config, int64_t head_dim, int64_t max_positions);
// Reads multi-head latent attention: the sizes of its latents and heads, its rotation and the scale of its scores.
void read_latent(const io::JsonFields& config, ModelConfig& c);
// Reads quantization_config: the blocks of weights in fp8 (hf/block_scales.h); std::nullopt when the weights are not
// quantized. Throws ConfigError for other kinds: their files have other tensors than the names say.
std::optional<hf::ScaleBlock> read_scale_block(const io::JsonFields& config);
// Read one value each; throw for names that are not supported. read_dtype takes dtype or the older torch_dtype.
ops::Activation read_activation(const io::JsonFields& config, std::string_view key);
at::ScalarType read_dtype(const io::JsonFields& config);

// Returns the names model.embed_tokens, model.layers.N.self_attn.q_proj, …
hf::NameMap decoder_names();

// Adds to `names` those of latent attention: q_a_proj, kv_a_proj_with_mqa, …
void add_latent_names(hf::NameMap& names);
// Adds to `names` those of multi-token-prediction layers that are numbered after the model's own layers:
// model.layers.N.enorm, hnorm, eh_proj, shared_head.norm, copies of the embedding and the head, and what every layer
// has.
void add_numbered_mtp_names(const ModelConfig& config, hf::NameMap& names);
// Returns the rules of `names` for what every layer has, rewritten for a multi-token-prediction layer whose names start
// with `prefix`.
std::vector<hf::NameRule> mtp_layer_rules(const hf::NameMap& names, const std::string& prefix);

// The families; families() lists them all.
Family deepseek_v3_family();
Family qwen2_5_vl_family();
Family qwen2_vl_family();
Family qwen3_5_family();
Family qwen3_5_moe_family();
Family qwen3_5_moe_text_family();
Family qwen3_5_text_family();
Family qwen3_omni_moe_family();
Family qwen3_vl_family();
Family qwen3_vl_moe_family();
Family qwen3_next_family();
Family gpt2_family();
Family llama_family();
Family megatron_gpt_family();
Family mistral_family();
Family qwen2_family();
Family qwen3_family();
Family seed_oss_family();
Family mixtral_family();
Family qwen2_moe_family();
Family qwen3_moe_family();
Family glm4_moe_family();

}  // namespace megalith::model
