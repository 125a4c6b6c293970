// Megatron's options in the keys of config.json. A Hugging Face family gets its own keys and no others, so that an
// export looks like any model of that family. Whether it holds everything that the options ask for is decided by
// reading it again and comparing (model_from_options.cc).
#include "megalith/run/resolve/family_json_internal.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "megalith/base/error.h"
#include "megalith/run/resolve/layer_list_internal.h"

namespace megalith::run {

namespace {

using config::LayerConfig;
using config::PositionConfig;
using config::PositionEmbedding;
using config::TrainingArguments;

// Reads the left part of Megatron's pair (left, right): tokens before a query that it sees, -1 for all.
int64_t window_reach(const std::string& given) {
  std::string text = given;
  std::erase_if(text, [](char c) { return c == ' ' || c == '(' || c == ')'; });
  int64_t left = 0, right = 0;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, left);
  const bool pair = first.ec == std::errc() && first.ptr != end && *first.ptr == ',';
  const auto second = pair ? std::from_chars(first.ptr + 1, end, right) : first;
  check<ConfigError>(pair && second.ec == std::errc() && second.ptr == end && left >= -1 && (right == 0 || right == -1),
                     "window_size is \"{}\"; give left,right such as 128,0: tokens that a query sees before itself (-1:"
                     " all) and after itself, which is 0 in a causal model",
                     given);
  return left;
}

// Without fusion, or without a bias to fuse, Megatron computes GELU exactly; its fused kernel approximates it by tanh.
const char* activation_of(const TrainingArguments& args) {
  if (on(args.layer.swiglu)) return "silu";
  if (on(args.layer.quick_geglu)) return "quick_gelu";
  if (on(args.layer.squared_relu)) return "relu2";
  return args.fusion.bias_activation && on(args.layer.add_bias_linear) ? "gelu_new" : "gelu";
}

io::Json gpt2_json(const TrainingArguments& args) {
  const double hidden_dropout = args.layer.hidden_dropout.value_or(0);
  return {{"model_type", "gpt2"},
          {"n_embd", *args.shape.hidden_size},
          {"n_layer", *args.shape.num_layers},
          {"n_head", *args.shape.num_attention_heads},
          {"n_inner", *args.shape.ffn_hidden_size},
          {"n_positions", *args.shape.max_position_embeddings},
          {"activation_function", activation_of(args)},
          {"layer_norm_epsilon", *args.layer.norm_epsilon},
          {"embd_pdrop", hidden_dropout},
          {"resid_pdrop", hidden_dropout},
          {"attn_pdrop", args.layer.attention_dropout.value_or(0)}};
}

// Uses the reference's constants for use_rope_scaling.
io::Json llama3_scaling(const PositionConfig& position) {
  return {{"rope_type", "llama3"},
          {"factor", position.rope_scaling_factor.value_or(8)},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

// YaRN (Peng et al., 2023) in the terms of transformers.
io::Json yarn_scaling(const PositionConfig& position) {
  const double factor = position.rotary_scaling_factor.value_or(1), mscale = position.mscale.value_or(1),
               all_dim = position.mscale_all_dim.value_or(0);
  io::Json scaling{{"rope_type", "yarn"},
                   {"factor", factor},
                   {"original_max_position_embeddings", position.original_max_position_embeddings.value_or(4096)},
                   {"beta_fast", position.beta_fast.value_or(32)},
                   {"beta_slow", position.beta_slow.value_or(1)}};
  // transformers uses an mscale of 1 unless mscale and mscale_all_dim are both given, so their effect is written out.
  const auto temperature = [factor](double scale) { return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1; };
  if (mscale != 1 || all_dim != 0) scaling["attention_factor"] = temperature(mscale) / temperature(all_dim);
  return scaling;
}

void add_rope(io::Json& json, const PositionConfig& position) {
  json["rope_theta"] = position.rotary_base.value_or(10000);
  if (on(position.use_rope_scaling)) json["rope_scaling"] = llama3_scaling(position);
  if (position.type == PositionEmbedding::kYarn) json["rope_scaling"] = yarn_scaling(position);
  if (const auto factor = position.rotary_interpolation_factor)
    json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", static_cast<double>(*factor)}};
}

// Latent attention takes yarn unless rope_type says otherwise, as in Megatron; a factor of 1 leaves frequencies alone.
void add_latent(io::Json& json, const TrainingArguments& args) {
  const config::MlaConfig& mla = args.mla;
  json["q_lora_rank"] = mla.q_lora_rank ? io::Json(*mla.q_lora_rank) : io::Json(nullptr);
  json["kv_lora_rank"] = mla.kv_lora_rank.value_or(32);
  json["qk_nope_head_dim"] = mla.qk_head_dim.value_or(128);
  json["qk_rope_head_dim"] = mla.qk_pos_emb_head_dim.value_or(64);
  json["v_head_dim"] = mla.v_head_dim.value_or(128);
  json["rope_interleave"] = true;
  const PositionConfig& position = args.position;
  json["rope_theta"] = position.rotary_base.value_or(10000);
  const bool yarn = position.rope_type.value_or(config::RopeType::kYarn) == config::RopeType::kYarn;
  if (!yarn || position.rotary_scaling_factor.value_or(1) == 1) return;
  json["rope_scaling"] = yarn_scaling(position);
  json["rope_scaling"]["mscale"] = position.mscale.value_or(1);
  json["rope_scaling"]["mscale_all_dim"] = position.mscale_all_dim.value_or(0);
}

// A window is the same number in all families; which layers have it is layer_types, or all layers of a mistral.
void add_windows(io::Json& json, const TrainingArguments& args) {
  const std::vector<int64_t> windows = windows_of(args);
  const auto family = json["model_type"].get<std::string>();
  const int64_t widest = windows.empty() ? 0 : std::ranges::max(windows);
  if (widest == 0) return;
  if (family.starts_with("mi")) {
    json["sliding_window"] = widest;
  } else if (family.starts_with("qwen") || family == "megatron_gpt") {
    json["use_sliding_window"] = true;
    json["sliding_window"] = widest;
    json["layer_types"] = io::Json::array();
    for (const int64_t window : windows)
      json["layer_types"].push_back(window > 0 ? "sliding_attention" : "full_attention");
  }
}

// The keys that all families but gpt2 have in common.
io::Json decoder_json(const TrainingArguments& args, const std::string& family) {
  io::Json json{{"model_type", family},
                {"hidden_size", *args.shape.hidden_size},
                {"num_hidden_layers", *args.shape.num_layers},
                {"num_attention_heads", *args.shape.num_attention_heads},
                {"num_key_value_heads", *args.shape.num_query_groups},
                {"intermediate_size", *args.shape.ffn_hidden_size},
                {"max_position_embeddings", *args.shape.max_position_embeddings},
                {"hidden_act", activation_of(args)},
                {"attention_dropout", args.layer.attention_dropout.value_or(0)}};
  if (args.mla.multi_latent_attention) {
    add_latent(json, args);
  } else {
    json["head_dim"] = *args.shape.kv_channels;
    add_rope(json, args.position);
  }
  add_windows(json, args);
  if (args.moe.num_experts) add_experts(json, args);
  if (const int layers = args.shape.mtp_num_layers.value_or(0); layers > 0) json["num_nextn_predict_layers"] = layers;
  return json;
}

const char* position_name(const PositionConfig& position) {
  if (position.type == PositionEmbedding::kLearnedAbsolute) return "learned_absolute";
  return position.type == PositionEmbedding::kNone ? "none" : "rope";
}

}  // namespace

std::vector<int64_t> windows_of(const TrainingArguments& args) {
  if (!args.layer.window_size) return {};
  const int64_t reach = window_reach(*args.layer.window_size), layers = *args.shape.num_layers;
  if (reach < 0) return {};
  std::vector<int64_t> windows(static_cast<size_t>(layers), reach + 1);  // the query sees itself, too
  if (!args.layer.window_attn_skip_freq) return windows;
  constexpr const char* kOption = "window_attn_skip_freq";
  const auto step = layer_step(kOption, *args.layer.window_attn_skip_freq);
  const auto list = step ? std::vector<bool>{} : parse_layer_list(kOption, *args.layer.window_attn_skip_freq, layers);
  for (size_t layer = 0; layer < windows.size(); ++layer)
    if (step ? (layer + 1) % static_cast<size_t>(*step) == 0 : !list[layer]) windows[layer] = 0;
  return windows;
}

std::string nearest_family(const TrainingArguments& args) {
  const LayerConfig& layer = args.layer;
  if (args.mla.multi_latent_attention) return "deepseek_v3";
  if (args.moe.num_experts) return nearest_expert_family(args);
  if (args.position.type == PositionEmbedding::kLearnedAbsolute)
    return *args.shape.hidden_size % *args.shape.num_attention_heads == 0 ? "gpt2" : "";
  if (on(layer.qk_layernorm)) return "qwen3";
  if (on(layer.add_qkv_bias) && !on(layer.add_bias_linear)) return "qwen2";
  return !windows_of(args).empty() && !on(layer.add_bias_linear) ? "mistral" : "llama";
}

io::Json family_json(const TrainingArguments& args, const std::string& family) {
  if (family == "gpt2") return gpt2_json(args);
  io::Json json = decoder_json(args, family);
  json["rms_norm_eps"] = *args.layer.norm_epsilon;
  const bool bias = on(args.layer.add_bias_linear);
  if (family == "llama") json["attention_bias"] = json["mlp_bias"] = bias;
  if (family == "qwen3" || family == "qwen3_moe" || family == "deepseek_v3") json["attention_bias"] = bias;
  if (family == "qwen2_moe") json["qkv_bias"] = on(args.layer.add_qkv_bias);
  if (family == "deepseek_v3" && !args.moe.num_experts) json["first_k_dense_replace"] = *args.shape.num_layers;
  if (family != "glm4_moe") return json;
  json["attention_bias"] = on(args.layer.add_qkv_bias);
  json["use_qk_norm"] = on(args.layer.qk_layernorm);
  json["partial_rotary_factor"] = args.position.rotary_percent.value_or(1);
  return json;
}

io::Json megatron_gpt_json(const TrainingArguments& args) {
  const LayerConfig& layer = args.layer;
  io::Json json = decoder_json(args, "megatron_gpt");
  json["normalization"] = layer.normalization == config::Normalization::kRmsNorm ? "RMSNorm" : "LayerNorm";
  json["layernorm_epsilon"] = *layer.norm_epsilon;
  json["gated_mlp"] = on(layer.swiglu) || on(layer.quick_geglu);
  json["add_bias_linear"] = on(layer.add_bias_linear);
  json["add_qkv_bias"] = on(layer.add_qkv_bias);
  json["qk_layernorm"] = on(layer.qk_layernorm);
  json["attention_output_gate"] = on(layer.attention_output_gate);
  json["hidden_dropout"] = layer.hidden_dropout.value_or(0);
  json["position_embedding_type"] = position_name(args.position);
  if (args.mla.multi_latent_attention) return json;
  json["rope_interleave"] = on(args.position.rotary_interleaved);
  json["partial_rotary_factor"] = args.position.rotary_percent.value_or(1);
  return json;
}

}  // namespace megalith::run
