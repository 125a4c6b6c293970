// deepseek_v3: multi-head latent attention, experts after the first dense layers, multi-token prediction.
//   q_lora_rank, kv_lora_rank       ranks of the compressed queries and keys/values; a null q_lora_rank means none
//   qk_nope_head_dim                channels per head without a position
//   qk_rope_head_dim                channels per head that rotate; those of the key are shared by all heads
//   first_k_dense_replace           layers before the first one with experts
//   n_group, topk_group             experts are chosen from the best topk_group of n_group groups
//   num_nextn_predict_layers        multi-token-prediction layers, numbered after the others in the files
// Rotary channels are interleaved in the published weights (rope_interleave), unlike in Llama's.
#include <cmath>

#include "megalith/model/families/decoder_internal.h"
#include "megalith/model/families/moe_internal.h"

namespace megalith::model {

namespace {

// Returns DeepSeek's factor of q·k: 1/sqrt(d) times the square of yarn's magnitude for mscale_all_dim.
double softmax_scale(const ModelConfig& config) {
  const double base = 1 / std::sqrt(static_cast<double>(config.head_dim));
  const ops::RopeSettings& rope = *config.rope;
  const double mscale = rope.mscale_all_dim.value_or(0);
  if (rope.scaling == ops::RopeScaling::kNone || mscale == 0 || rope.factor <= 1) return base;
  const double magnitude = 0.1 * mscale * std::log(rope.factor) + 1;
  return base * magnitude * magnitude;
}

// Reads the experts, which all layers but the first few have.
void read_deepseek_experts(const io::JsonFields& config, ModelConfig& c) {
  const auto dense = config.optional<int64_t>("first_k_dense_replace").value_or(3);
  if (dense >= c.num_layers) return;
  if (config.optional<int64_t>("moe_layer_freq").value_or(1) != 1)
    config.refuse("moe_layer_freq", "be 1: all layers after the dense ones have experts");
  c.moe = read_experts(config, "n_routed_experts");
  read_sigmoid_router(config, c.moe->router);
  c.moe->width = config.positive<int64_t>("moe_intermediate_size");
  // n shared experts are one MLP of n times the width: their outputs are added without weights.
  c.moe->shared_width = c.moe->width * config.optional<int64_t>("n_shared_experts").value_or(1);
  for (int64_t layer = 0; layer < c.num_layers; ++layer) c.moe_layers.push_back(layer >= dense);
}

}  // namespace

void read_latent(const io::JsonFields& config, ModelConfig& c) {
  c.latent = LatentSizes{.q_rank = config.optional_positive<int64_t>("q_lora_rank").value_or(0),
                         .kv_rank = config.positive<int64_t>("kv_lora_rank"),
                         .nope_dim = config.positive<int64_t>("qk_nope_head_dim"),
                         .rotary_dim = config.positive<int64_t>("qk_rope_head_dim"),
                         .value_dim = config.positive<int64_t>("v_head_dim")};
  c.head_dim = c.latent->nope_dim + c.latent->rotary_dim;  // in config.json head_dim is the rotary part
  // num_key_value_heads says 128 in the published file and has no meaning for latent attention.
  c.num_kv_heads = c.num_heads;
  c.rope = read_rope(config, c.latent->rotary_dim, c.max_positions);
  c.rope->interleaved = config.optional<bool>("rope_interleave").value_or(true);
  c.attention_scale = softmax_scale(c);
}

// kv_a_proj_with_mqa makes the latent and the shared rotary key in one product, so it stays one tensor here, too.
void add_latent_names(hf::NameMap& names) {
  const auto attention = [&names](const std::string& theirs, const std::string& ours) {
    names.rules.push_back({"model.layers.{}.self_attn." + theirs, {"layers.{}.attention." + ours}});
  };
  attention("q_a_proj.weight", "q_down.weight");
  attention("q_a_proj.bias", "q_down.bias");
  attention("q_a_layernorm.weight", "q_latent_norm.weight");
  attention("q_b_proj.weight", "q_up.weight");
  attention("kv_a_proj_with_mqa.weight", "kv_down.weight");
  attention("kv_a_proj_with_mqa.bias", "kv_down.bias");
  attention("kv_a_layernorm.weight", "kv_latent_norm.weight");
  attention("kv_b_proj.weight", "kv_up.weight");
}

namespace {

ModelConfig read_deepseek_v3(const io::JsonFields& config) {
  ModelConfig c = read_decoder(config);
  read_latent(config, c);
  c.out_bias = config.optional<bool>("attention_bias").value_or(false);
  read_deepseek_experts(config, c);
  c.mtp_layers = config.optional<int64_t>("num_nextn_predict_layers").value_or(0);
  return c;
}

hf::NameMap deepseek_v3_names() {
  hf::NameMap names = moe_names({.shared = "shared_experts"});
  add_latent_names(names);
  return names;
}

}  // namespace

// Latent attention and experts; multi-token-prediction layers are numbered after the others.
Family deepseek_v3_family() {
  return {"deepseek_v3", "DeepseekV3ForCausalLM", read_deepseek_v3, deepseek_v3_names(), add_numbered_mtp_names};
}

}  // namespace megalith::model
