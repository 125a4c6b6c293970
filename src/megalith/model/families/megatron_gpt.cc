// megatron_gpt: every decoder that Megatron's options can describe and no Hugging Face family holds, such as rotary
// positions with LayerNorm, a part of a head that rotates, or prediction layers after a dense model. transformers does
// not know the type; everything in Megalith does. Switches that other families fix are keys of config.json here:
//
//   normalization             RMSNorm, LayerNorm         position_embedding_type   rope, learned_absolute, none
//   gated_mlp                 gate and up, or up alone   rope_interleave           pairs are neighbors
//   add_qkv_bias              query, key and value       partial_rotary_factor     part of a head that rotates
//   add_bias_linear           all linear layers          sliding_window            with layer_types, as in qwen
//   qk_layernorm              norms on queries and keys  kv_lora_rank, …           latent attention, as in deepseek_v3
//   attention_output_gate     q_proj is query | gate     num_experts, …            experts, as in qwen and deepseek_v3
#include <algorithm>

#include "megalith/model/families/decoder_internal.h"
#include "megalith/model/families/moe_internal.h"

namespace megalith::model {

namespace {

bool is_set(const io::JsonFields& config, const char* key) { return config.optional<bool>(key).value_or(false); }

void read_positions(const io::JsonFields& config, ModelConfig& c) {
  const auto type = config.required<std::string>("position_embedding_type");
  if (type != "rope") c.rope.reset();
  c.learned_positions = type == "learned_absolute";
  if (type != "rope" && type != "learned_absolute" && type != "none")
    config.refuse("position_embedding_type", "be rope, learned_absolute or none");
  if (c.rope) c.rope->interleaved = is_set(config, "rope_interleave");
}

// The score of a group sums as many of its experts as a token takes from it, as in Megatron.
void read_groups(const io::JsonFields& config, nn::RouterShape& router) {
  router.groups = config.optional_positive<int64_t>("n_group").value_or(1);
  router.group_topk = config.optional_positive<int64_t>("topk_group").value_or(router.groups);
  if (router.groups > 1) router.group_best = std::max<int64_t>(router.topk / router.group_topk, 1);
}

void read_switched_experts(const io::JsonFields& config, ModelConfig& c) {
  c.moe = read_experts(config, "num_experts");
  nn::RouterShape& router = c.moe->router;
  const auto score = config.required<std::string>("scoring_func");
  if (score == "sigmoid")
    read_sigmoid_router(config, router);
  else if (score != "softmax")
    config.refuse("scoring_func", "be softmax or sigmoid");
  router.pre_softmax = score == "softmax" && !config.optional<bool>("norm_topk_prob").value_or(true);
  router.scaling = config.optional_positive<double>("routed_scaling_factor").value_or(1);
  read_groups(config, router);
  c.moe->width = config.positive<int64_t>("moe_intermediate_size");
  c.moe->shared_width = config.optional<int64_t>("shared_expert_intermediate_size").value_or(0);
  c.moe->shared_gate = is_set(config, "shared_expert_gate");
  const auto dense = config.optional<std::vector<int64_t>>("mlp_only_layers").value_or(std::vector<int64_t>{});
  for (int64_t layer = 0; layer < c.num_layers; ++layer)
    c.moe_layers.push_back(std::ranges::find(dense, layer) == dense.end());
}

ModelConfig read_megatron_gpt(const io::JsonFields& config) {
  ModelConfig c = read_decoder(config);
  const auto norm = config.required<std::string>("normalization");
  if (norm != "RMSNorm" && norm != "LayerNorm") config.refuse("normalization", "be RMSNorm or LayerNorm");
  c.norm = norm == "RMSNorm" ? ops::NormKind::kRms : ops::NormKind::kLayer;
  c.norm_epsilon = config.optional_positive<double>("layernorm_epsilon").value_or(1e-5);
  c.gated_mlp = config.required<bool>("gated_mlp");
  c.out_bias = c.mlp_bias = is_set(config, "add_bias_linear");
  c.qkv_bias = c.out_bias || is_set(config, "add_qkv_bias");
  c.qk_norm = is_set(config, "qk_layernorm");
  c.attention_output_gate = is_set(config, "attention_output_gate");
  c.windows = read_windows(config, c.num_layers);
  c.hidden_dropout = c.embedding_dropout = config.optional<double>("hidden_dropout").value_or(0);
  read_positions(config, c);
  if (config.has("kv_lora_rank")) {
    if (!c.rope) config.refuse("position_embedding_type", "be rope with latent attention (kv_lora_rank)");
    read_latent(config, c);
    c.qk_norm = false;  // the norms of the latents take its place
  }
  if (config.has("num_experts")) read_switched_experts(config, c);
  c.mtp_layers = config.optional<int64_t>("num_nextn_predict_layers").value_or(0);
  return c;
}

hf::NameMap megatron_gpt_names() {
  hf::NameMap names = moe_names({.shared = "shared_experts"});
  add_latent_names(names);
  names.rules.push_back({"model.embed_positions.weight", {"position_embedding.weight"}});
  names.rules.push_back({"model.norm.bias", {"final_norm.bias"}});
  const auto bias = [&names](const std::string& theirs, const std::string& ours) {
    names.rules.push_back({"model.layers.{}." + theirs + ".bias", {"layers.{}." + ours + ".bias"}});
  };
  bias("input_layernorm", "attention_norm");
  bias("post_attention_layernorm", "mlp_norm");
  bias("self_attn.q_norm", "attention.q_norm");
  bias("self_attn.k_norm", "attention.k_norm");
  return names;
}

void add_megatron_mtp_names(const ModelConfig& config, hf::NameMap& names) {
  add_numbered_mtp_names(config, names);
  const std::string prefix = "model.layers.{+" + std::to_string(config.num_layers) + "}.";
  names.rules.push_back({prefix + "enorm.bias", {"mtp.{}.embedding_norm.bias"}});
  names.rules.push_back({prefix + "hnorm.bias", {"mtp.{}.hidden_norm.bias"}});
  names.rules.push_back({prefix + "shared_head.norm.bias", {"mtp.{}.norm.bias"}});
}

}  // namespace

Family megatron_gpt_family() {
  return {"megatron_gpt", "MegatronGptForCausalLM", read_megatron_gpt, megatron_gpt_names(), add_megatron_mtp_names};
}

}  // namespace megalith::model
