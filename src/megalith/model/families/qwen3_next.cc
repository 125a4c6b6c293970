// qwen3_next: three of four layers are gated delta nets (layer_types, or full_attention_interval in the first files),
// the others attention with an output gate and a quarter of its channels rotating; every layer has experts with a gated
// shared one. Norm weights are stored as w - 1. linear_num_key_heads, linear_num_value_heads, linear_key_head_dim,
// linear_value_head_dim and linear_conv_kernel_dim are the sizes of the delta net.
#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/model/families/decoder_internal.h"
#include "megalith/model/families/moe_internal.h"

namespace megalith::model {

namespace {

// Reads layer_types, or assumes attention in every n-th layer.
std::vector<bool> read_delta_net_layers(const io::JsonFields& config, int64_t layers) {
  std::vector<bool> linear;
  if (!config.has("layer_types")) {
    const auto interval = config.optional_positive<int64_t>("full_attention_interval").value_or(4);
    for (int64_t layer = 0; layer < layers; ++layer) linear.push_back((layer + 1) % interval != 0);
    return linear;
  }
  const auto kinds = config.required<std::vector<std::string>>("layer_types");
  if (static_cast<int64_t>(kinds.size()) != layers)
    config.refuse("layer_types", fmt::format("have an entry for each of the {} layers", layers));
  for (const std::string& kind : kinds) {
    if (kind != "linear_attention" && kind != "full_attention")
      config.refuse("layer_types", "hold linear_attention or full_attention only");
    linear.push_back(kind == "linear_attention");
  }
  return linear;
}

ModelConfig read_qwen3_next(const io::JsonFields& config) {
  ModelConfig c = read_decoder(config);
  if (!config.has("head_dim")) c.head_dim = 256;  // the family's default
  c.rope = read_rope(config, c.head_dim, c.max_positions);
  const auto rope = config.optional_object("rope_parameters");
  if (!config.has("partial_rotary_factor") && !(rope && rope->has("partial_rotary_factor")))
    // The family's default for partial_rotary_factor, where other families have 1.
    c.rope->rotary_dim = c.head_dim / 4;
  c.zero_centered_norms = true;
  c.qk_norm = true;
  c.attention_output_gate = true;
  c.qkv_bias = c.out_bias = config.optional<bool>("attention_bias").value_or(false);
  c.delta_net = DeltaNetSizes{.key_heads = config.positive<int64_t>("linear_num_key_heads"),
                              .value_heads = config.positive<int64_t>("linear_num_value_heads"),
                              .key_dim = config.positive<int64_t>("linear_key_head_dim"),
                              .value_dim = config.positive<int64_t>("linear_value_head_dim"),
                              .conv_kernel = config.positive<int64_t>("linear_conv_kernel_dim")};
  c.delta_net_layers = read_delta_net_layers(config, c.num_layers);
  read_qwen_experts(config, c);
  c.moe->shared_width = config.positive<int64_t>("shared_expert_intermediate_size");
  c.moe->shared_gate = true;
  c.mtp_layers = config.optional<int64_t>("num_nextn_predict_layers").value_or(0);
  return c;
}

hf::NameMap qwen3_next_names() {
  hf::NameMap names = moe_names({.shared = "shared_expert"});
  const auto layer = [&names](const std::string& theirs, const std::string& ours) {
    names.rules.push_back({"model.layers.{}.linear_attn." + theirs, {"layers.{}.attention." + ours}});
  };
  layer("in_proj_qkvz.weight", "in_qkvz.weight");
  layer("in_proj_ba.weight", "in_ba.weight");
  layer("A_log", "a_log");
  layer("dt_bias", "dt_bias");
  layer("norm.weight", "norm.weight");
  layer("out_proj.weight", "out.weight");
  // One depthwise convolution in the files, [q | k | v channels, 1, kernel]; three tensors here, so that tp can split
  // each by heads.
  hf::NameRule conv{"model.layers.{}.linear_attn.conv1d.weight", {}};
  for (const char* part : {"q", "k", "v"})
    conv.ours.push_back(fmt::format("layers.{{}}.attention.conv_{}.weight", part));
  conv.channelwise = true;
  names.rules.push_back(conv);
  names.ignored.push_back("mtp.*");  // for models that run without multi-token prediction
  return names;
}

// The files number mtp.layers.N but have only one set of norms and one projection, so their names fit one layer.
void add_qwen_mtp_names(const ModelConfig& config, hf::NameMap& names) {
  check<ConfigError>(config.mtp_layers == 1,
                     "there are {} multi-token-prediction layers, but files of {} models have names for one only; use"
                     " mtp_num_layers 1",
                     config.mtp_layers, config.family);
  std::vector<hf::NameRule> added = mtp_layer_rules(names, "mtp.layers.{}.");
  added.push_back({"mtp.pre_fc_norm_embedding.weight", {"mtp.{}.embedding_norm.weight"}});
  added.push_back({"mtp.pre_fc_norm_hidden.weight", {"mtp.{}.hidden_norm.weight"}});
  added.push_back({"mtp.fc.weight", {"mtp.{}.projection.weight"}});
  added.push_back({"mtp.norm.weight", {"mtp.{}.norm.weight"}});
  names.rules.insert(names.rules.end(), added.begin(), added.end());
}

}  // namespace

// Gated delta nets in most layers, gated attention in the others; experts with a gated shared one; zero-centered norms.
Family qwen3_next_family() {
  return {"qwen3_next", "Qwen3NextForCausalLM", read_qwen3_next, qwen3_next_names(), add_qwen_mtp_names};
}

}  // namespace megalith::model
