#include "megalith/base/error.h"
#include "tests/support/reference_config_internal.h"

namespace megalith::testing {

namespace {

using nlohmann::json;

bool is_one_of(const std::string& type, std::initializer_list<const char*> list) {
  for (const char* each : list)
    if (type == each) return true;
  return false;
}

// Routers with sigmoid scores, a bias and groups.
bool is_deepseek_like(const std::string& type) { return is_one_of(type, {"deepseek_v3", "glm4_moe"}); }
bool has_experts(const std::string& type) {
  return is_deepseek_like(type) ||
         is_one_of(type, {"mixtral", "qwen2_moe", "qwen3_moe", "qwen3_next", "qwen3_5_moe_text"});
}
bool numbers_mtp_layers(const std::string& type) { return is_deepseek_like(type) || type == "megatron_gpt"; }
bool has_gated_shared_expert(const std::string& type) {
  return is_one_of(type, {"qwen2_moe", "qwen3_next", "qwen3_5_moe_text"});
}
bool keeps_projections_apart(const std::string& type) { return is_one_of(type, {"qwen3_5_text", "qwen3_5_moe_text"}); }

// The key that holds the number of experts; published files and newer ones differ for qwen3_moe.
int64_t expert_count(const json& config) {
  for (const char* key : {"num_local_experts", "num_experts", "n_routed_experts"})
    if (config.contains(key)) return config.at(key);
  throw DataError("config.json says no number of experts");
}

// Reads which layers of a megatron_gpt model are dense, and how its router scores.
void read_own_experts(const json& config, ReferenceExperts& experts) {
  experts.sigmoid = config.at("scoring_func") == "sigmoid";
  experts.shared_width = config.at("shared_expert_intermediate_size");
  experts.scale = config.at("routed_scaling_factor");
  experts.first_dense = static_cast<int64_t>(config.at("mlp_only_layers").size());
}

void write_own_experts(const ReferenceExperts& experts, json& config) {
  config["scoring_func"] = experts.sigmoid ? "sigmoid" : "softmax";
  config["shared_expert_intermediate_size"] = experts.shared_width;
  config["routed_scaling_factor"] = experts.scale;
  config["mlp_only_layers"] = json::array();
  for (int64_t layer = 0; layer < experts.first_dense; ++layer) config["mlp_only_layers"].push_back(layer);
}

void read_experts(const json& config, ReferenceConfig& model) {
  const std::string& type = model.model_type;
  ReferenceExperts& experts = *model.experts;
  experts.count = expert_count(config);
  experts.topk = config.at("num_experts_per_tok");
  experts.width = type == "mixtral" ? model.intermediate_size : config.at("moe_intermediate_size").get<int64_t>();
  if (type != "mixtral")
    experts.normalize = get(config, "norm_topk_prob", is_deepseek_like(type) || keeps_projections_apart(type));
  if (has_gated_shared_expert(type)) experts.shared_width = config.at("shared_expert_intermediate_size");
  if (model.is_megatron()) read_own_experts(config, experts);
  if (!is_deepseek_like(type)) return;
  experts.shared_width = experts.width * config.at("n_shared_experts").get<int64_t>();
  experts.scale = config.at("routed_scaling_factor");
  experts.groups = config.at("n_group");
  experts.group_topk = config.at("topk_group");
  experts.first_dense = config.at("first_k_dense_replace");
}

void write_experts(const ReferenceConfig& model, json& config) {
  const std::string& type = model.model_type;
  const ReferenceExperts& experts = *model.experts;
  const bool deepseek_like = is_deepseek_like(type);
  config[type == "mixtral" ? "num_local_experts" : deepseek_like ? "n_routed_experts" : "num_experts"] = experts.count;
  config["num_experts_per_tok"] = experts.topk;
  config["router_aux_loss_coef"] = 0.0;
  if (type == "mixtral") return;
  config["moe_intermediate_size"] = experts.width;
  config["norm_topk_prob"] = experts.normalize;
  if (has_gated_shared_expert(type)) config["shared_expert_intermediate_size"] = experts.shared_width;
  if (model.is_megatron()) write_own_experts(experts, config);
  if (!deepseek_like) return;
  config["n_shared_experts"] = experts.shared_width / experts.width;
  config["routed_scaling_factor"] = experts.scale;
  config["n_group"] = experts.groups;
  config["topk_group"] = experts.group_topk;
  config["first_k_dense_replace"] = experts.first_dense;
}

}  // namespace

bool has_delta_nets(const std::string& type) { return type == "qwen3_next" || keeps_projections_apart(type); }

void set_parts_of_family(ReferenceConfig& model) {
  const std::string& type = model.model_type;
  if (has_experts(type)) model.experts.emplace();
  if (has_gated_shared_expert(type)) {
    model.experts->shared_width = 16;
    model.experts->shared_gate = true;
  }
  if (is_deepseek_like(type)) {
    model.experts->sigmoid = true;
    model.experts->shared_width = 16;
    model.experts->first_dense = 1;
  }
  if (type == "mixtral") model.experts->width = model.intermediate_size;
  model.qk_norm |= is_one_of(type, {"qwen3_moe", "glm4_moe"}) || has_delta_nets(type);
  if (keeps_projections_apart(type) && model.experts) model.experts->normalize = true;
  if (has_delta_nets(type)) {
    model.centered_norms = model.gated_attention = true;
    model.delta_net.emplace();
    model.delta_net->apart = keeps_projections_apart(type);
    model.rope.partial_rotary_factor = 0.25;
  }
  if (type != "deepseek_v3") return;
  model.latent.emplace();
  model.num_kv_heads = model.num_heads;
  model.head_dim = model.latent->rope;
}

void read_parts(const json& config, ReferenceConfig& model) {
  if (model.experts) read_experts(config, model);
  if (model.model_type == "glm4_moe") model.qk_norm = get(config, "use_qk_norm", false);
  if (numbers_mtp_layers(model.model_type)) model.mtp = get<int64_t>(config, "num_nextn_predict_layers", 0);
  if (model.delta_net)
    model.delta_net = {.key_heads = config.at("linear_num_key_heads"),
                       .value_heads = config.at("linear_num_value_heads"),
                       .key_dim = config.at("linear_key_head_dim"),
                       .value_dim = config.at("linear_value_head_dim"),
                       .kernel = config.at("linear_conv_kernel_dim"),
                       .apart = keeps_projections_apart(model.model_type)};
  if (!model.latent) return;
  model.latent = {.q_rank = get<int64_t>(config, "q_lora_rank", 0),
                  .kv_rank = config.at("kv_lora_rank"),
                  .nope = config.at("qk_nope_head_dim"),
                  .rope = config.at("qk_rope_head_dim"),
                  .value = config.at("v_head_dim")};
  model.head_dim = model.latent->rope;
}

void read_switches(const json& config, ReferenceConfig& model) {
  model.layer_norm = config.at("normalization") == "LayerNorm";
  model.norm_epsilon = config.at("layernorm_epsilon");
  model.gated_mlp = config.at("gated_mlp");
  model.out_bias = model.mlp_bias = config.at("add_bias_linear");
  model.qkv_bias = model.out_bias || config.at("add_qkv_bias").get<bool>();
  model.qk_norm = config.at("qk_layernorm");
  model.gated_attention = config.at("attention_output_gate");
  model.learned_positions = config.at("position_embedding_type") == "learned_absolute";
  model.rope.interleaved = config.at("rope_interleave");
  if (config.contains("num_experts")) model.experts.emplace();
  if (config.contains("kv_lora_rank")) model.latent.emplace();
}

void write_switches(const ReferenceConfig& model, json& config) {
  config["normalization"] = model.layer_norm ? "LayerNorm" : "RMSNorm";
  config["layernorm_epsilon"] = model.norm_epsilon;
  config["gated_mlp"] = model.gated_mlp;
  config["add_bias_linear"] = model.out_bias;
  config["add_qkv_bias"] = model.qkv_bias;
  config["qk_layernorm"] = model.qk_norm;
  config["attention_output_gate"] = model.gated_attention;
  config["position_embedding_type"] = model.learned_positions ? "learned_absolute" : "rope";
  config["rope_interleave"] = model.rope.interleaved;
}

void write_parts(const ReferenceConfig& model, json& config) {
  if (model.experts) write_experts(model, config);
  if (model.model_type == "glm4_moe") config["use_qk_norm"] = model.qk_norm;
  if (model.mtp > 0) config["num_nextn_predict_layers"] = model.mtp;
  if (model.delta_net) {
    config["linear_num_key_heads"] = model.delta_net->key_heads;
    config["linear_num_value_heads"] = model.delta_net->value_heads;
    config["linear_key_head_dim"] = model.delta_net->key_dim;
    config["linear_value_head_dim"] = model.delta_net->value_dim;
    config["linear_conv_kernel_dim"] = model.delta_net->kernel;
    for (int64_t layer = 0; layer < model.num_layers; ++layer)
      config["layer_types"].push_back(model.has_delta_net(layer) ? "linear_attention" : "full_attention");
  }
  if (!model.latent) return;
  const ReferenceLatent& latent = *model.latent;
  if (latent.q_rank > 0)
    config["q_lora_rank"] = latent.q_rank;
  else
    config["q_lora_rank"] = nullptr;
  config["kv_lora_rank"] = latent.kv_rank;
  config["qk_nope_head_dim"] = latent.nope;
  config["qk_rope_head_dim"] = latent.rope;
  config["v_head_dim"] = latent.value;
}

}  // namespace megalith::testing
