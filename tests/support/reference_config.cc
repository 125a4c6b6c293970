#include "tests/support/reference_config.h"

#include <algorithm>
#include <map>

#include "megalith/base/error.h"
#include "tests/support/reference_config_internal.h"

namespace megalith::testing {

namespace {

using nlohmann::json;

template <typename T>
std::optional<T> get_if(const json& object, const char* key) {
  if (!object.contains(key) || object.at(key).is_null()) return std::nullopt;
  return object.at(key).get<T>();
}

ReferenceRope read_rope(const json& config) {
  const json empty = json::object();
  json settings = empty;
  for (const char* key : {"rope_scaling", "rope_parameters"})
    if (config.contains(key) && config.at(key).is_object()) settings = config.at(key);
  ReferenceRope rope;
  rope.type = get<std::string>(settings, "rope_type", get<std::string>(settings, "type", "default"));
  rope.theta = get(settings, "rope_theta", get(config, "rope_theta", 10000.0));
  rope.partial_rotary_factor =
      get(settings, "partial_rotary_factor", get(config, "partial_rotary_factor", rope.partial_rotary_factor));
  rope.factor = get(settings, "factor", rope.factor);
  rope.original_positions = get<int64_t>(settings, "original_max_position_embeddings", 0);
  rope.low_freq_factor = get(settings, "low_freq_factor", rope.low_freq_factor);
  rope.high_freq_factor = get(settings, "high_freq_factor", rope.high_freq_factor);
  rope.beta_fast = get(settings, "beta_fast", rope.beta_fast);
  rope.beta_slow = get(settings, "beta_slow", rope.beta_slow);
  rope.truncate = get(settings, "truncate", rope.truncate);
  rope.mscale = get_if<double>(settings, "mscale");
  rope.mscale_all_dim = get_if<double>(settings, "mscale_all_dim");
  rope.attention_factor = get_if<double>(settings, "attention_factor");
  return rope;
}

json write_rope(const ReferenceRope& rope) {
  json out{{"rope_type", rope.type}, {"rope_theta", rope.theta}};
  if (rope.partial_rotary_factor != 1) out["partial_rotary_factor"] = rope.partial_rotary_factor;
  if (rope.type == "default") return out;
  out["factor"] = rope.factor;
  if (rope.type == "llama3") {
    out["low_freq_factor"] = rope.low_freq_factor;
    out["high_freq_factor"] = rope.high_freq_factor;
  }
  if (rope.type == "llama3" || rope.type == "yarn") out["original_max_position_embeddings"] = rope.original_positions;
  if (rope.type != "yarn") return out;
  out["beta_fast"] = rope.beta_fast;
  out["beta_slow"] = rope.beta_slow;
  out["truncate"] = rope.truncate;
  if (rope.mscale) out["mscale"] = *rope.mscale;
  if (rope.mscale_all_dim) out["mscale_all_dim"] = *rope.mscale_all_dim;
  if (rope.attention_factor) out["attention_factor"] = *rope.attention_factor;
  return out;
}

// Families that say which layers have a window.
bool names_windows(const std::string& type) { return type == "qwen2" || type == "qwen3" || type == "megatron_gpt"; }

std::vector<int64_t> read_windows(const json& config, const ReferenceConfig& model) {
  const auto layers = static_cast<size_t>(model.num_layers);
  const auto window = get<int64_t>(config, "sliding_window", 0);
  if (model.model_type == "mistral") return window > 0 ? std::vector<int64_t>(layers, window) : std::vector<int64_t>();
  if (!names_windows(model.model_type) || !get(config, "use_sliding_window", false)) return {};
  std::vector<int64_t> windows(layers, 0);
  const auto types = get<std::vector<std::string>>(config, "layer_types", {});
  for (size_t i = 0; i < layers; ++i) {
    const bool slides = types.empty() ? static_cast<int64_t>(i) >= get<int64_t>(config, "max_window_layers", 28)
                                      : types.at(i) == "sliding_attention";
    if (slides) windows[i] = window;
  }
  return windows;
}

void write_windows(const ReferenceConfig& model, json& config) {
  if (model.windows.empty()) return;
  const int64_t window = *std::ranges::max_element(model.windows);
  config["sliding_window"] = window;
  if (!names_windows(model.model_type)) return;
  config["use_sliding_window"] = true;
  for (const int64_t w : model.windows) config["layer_types"].push_back(w > 0 ? "sliding_attention" : "full_attention");
}

ReferenceConfig read_gpt2(const json& config) {
  ReferenceConfig model = ReferenceConfig::of_family("gpt2");
  model.vocab_size = config.at("vocab_size");
  model.hidden_size = config.at("n_embd");
  model.num_layers = config.at("n_layer");
  model.num_heads = model.num_kv_heads = config.at("n_head");
  model.head_dim = model.hidden_size / model.num_heads;
  model.intermediate_size = get(config, "n_inner", 4 * model.hidden_size);
  model.max_positions = config.at("n_positions");
  model.norm_epsilon = get(config, "layer_norm_epsilon", 1e-5);
  model.activation = get<std::string>(config, "activation_function", "gelu_new");
  model.scale_attention = get(config, "scale_attn_weights", true);
  model.scale_by_inverse_layer = get(config, "scale_attn_by_inverse_layer_idx", false);
  model.tied = get(config, "tie_word_embeddings", true);
  return model;
}

json write_gpt2(const ReferenceConfig& model) {
  return {{"model_type", "gpt2"},
          {"architectures", {"GPT2LMHeadModel"}},
          {"vocab_size", model.vocab_size},
          {"n_embd", model.hidden_size},
          {"n_layer", model.num_layers},
          {"n_head", model.num_heads},
          {"n_inner", model.intermediate_size},
          {"n_positions", model.max_positions},
          {"layer_norm_epsilon", model.norm_epsilon},
          {"activation_function", model.activation},
          {"scale_attn_weights", model.scale_attention},
          {"scale_attn_by_inverse_layer_idx", model.scale_by_inverse_layer},
          {"tie_word_embeddings", model.tied},
          {"attn_pdrop", 0.0},
          {"embd_pdrop", 0.0},
          {"resid_pdrop", 0.0},
          {"bos_token_id", nullptr},
          {"eos_token_id", nullptr},
          {"dtype", "float32"}};
}

// Everything but gpt2.
const std::map<std::string, const char*> kArchitectures{
    {"llama", "LlamaForCausalLM"},          {"mistral", "MistralForCausalLM"},
    {"qwen2", "Qwen2ForCausalLM"},          {"qwen3", "Qwen3ForCausalLM"},
    {"seed_oss", "SeedOssForCausalLM"},     {"mixtral", "MixtralForCausalLM"},
    {"qwen2_moe", "Qwen2MoeForCausalLM"},   {"qwen3_moe", "Qwen3MoeForCausalLM"},
    {"glm4_moe", "Glm4MoeForCausalLM"},     {"deepseek_v3", "DeepseekV3ForCausalLM"},
    {"qwen3_next", "Qwen3NextForCausalLM"}, {"megatron_gpt", "MegatronGptForCausalLM"},
    {"qwen3_5_text", "Qwen3_5ForCausalLM"}, {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"},
};

// Families whose attention_bias says whether q, k and v have one, and those where o has it as well.
bool names_qkv_bias(const std::string& type) {
  return type == "llama" || type == "qwen3" || type == "seed_oss" || type == "qwen3_moe" || type == "glm4_moe" ||
         has_delta_nets(type);
}
bool shares_bias_with_out(const std::string& type) {
  return type == "llama" || type == "qwen3" || type == "qwen3_moe" || has_delta_nets(type);
}

json write_llama_like(const ReferenceConfig& model) {
  json config{{"model_type", model.model_type},
              {"architectures", {kArchitectures.at(model.model_type)}},
              {"vocab_size", model.vocab_size},
              {"hidden_size", model.hidden_size},
              {"intermediate_size", model.intermediate_size},
              {"num_hidden_layers", model.num_layers},
              {"num_attention_heads", model.num_heads},
              {"num_key_value_heads", model.num_kv_heads},
              {"head_dim", model.head_dim},
              {"max_position_embeddings", model.max_positions},
              {"rms_norm_eps", model.norm_epsilon},
              {"hidden_act", model.activation},
              {"tie_word_embeddings", model.tied},
              {"rope_parameters", write_rope(model.rope)},
              {"sliding_window", nullptr},
              {"bos_token_id", nullptr},
              {"eos_token_id", nullptr},
              {"dtype", "float32"}};
  const std::string& type = model.model_type;
  if (names_qkv_bias(type)) config["attention_bias"] = model.qkv_bias;
  if (type == "seed_oss") config["attention_out_bias"] = model.out_bias;
  if (type == "llama" || type == "seed_oss") config["mlp_bias"] = model.mlp_bias;
  write_windows(model, config);
  write_parts(model, config);
  if (model.is_megatron()) write_switches(model, config);
  return config;
}

}  // namespace

std::vector<std::string> ReferenceConfig::families() {
  std::vector<std::string> all{"gpt2"};
  for (const auto& [name, architecture] : kArchitectures) all.push_back(name);
  return all;
}

bool ReferenceConfig::supports(const std::string& model_type) {
  return model_type == "gpt2" || kArchitectures.contains(model_type);
}

ReferenceConfig ReferenceConfig::of_family(const std::string& model_type) {
  check<ConfigError>(supports(model_type), "the reference model has no family {}", model_type);
  ReferenceConfig model;
  model.model_type = model_type;
  if (model_type == "gpt2") {
    model.num_kv_heads = model.num_heads;
    model.qkv_bias = model.out_bias = model.mlp_bias = model.tied = true;
    model.activation = "gelu_new";
  }
  model.qkv_bias |= model_type == "qwen2" || model_type == "seed_oss" || model_type == "qwen2_moe";
  model.qk_norm = model_type == "qwen3";
  set_parts_of_family(model);
  return model;
}

ReferenceConfig ReferenceConfig::from_json(const json& config) {
  const auto type = config.at("model_type").get<std::string>();
  if (type == "gpt2") return read_gpt2(config);
  ReferenceConfig model = of_family(type);
  model.vocab_size = config.at("vocab_size");
  model.hidden_size = config.at("hidden_size");
  model.intermediate_size = get(config, "intermediate_size", model.intermediate_size);  // absent with experts alone
  model.num_layers = config.at("num_hidden_layers");
  model.num_heads = config.at("num_attention_heads");
  model.num_kv_heads = get(config, "num_key_value_heads", model.num_heads);
  model.head_dim = get(config, "head_dim", model.hidden_size / model.num_heads);
  model.max_positions = config.at("max_position_embeddings");
  model.norm_epsilon = get(config, "rms_norm_eps", 1e-6);
  model.activation = get<std::string>(config, "hidden_act", "silu");
  model.tied = get(config, "tie_word_embeddings", false);
  if (names_qkv_bias(type)) model.qkv_bias = get(config, "attention_bias", type == "seed_oss");
  if (shares_bias_with_out(type)) model.out_bias = model.qkv_bias;
  if (type == "seed_oss") model.out_bias = get(config, "attention_out_bias", false);
  if (type == "llama" || type == "seed_oss") model.mlp_bias = get(config, "mlp_bias", false);
  model.windows = read_windows(config, model);
  model.rope = read_rope(config);
  if (model.is_megatron()) read_switches(config, model);
  read_parts(config, model);
  return model;
}

json ReferenceConfig::to_json() const {
  const json config = is_gpt2() ? write_gpt2(*this) : write_llama_like(*this);
  check(from_json(config) == *this, "a config.json of {} cannot express these settings: {}", model_type, config.dump());
  return config;
}

}  // namespace megalith::testing
