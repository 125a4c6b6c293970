// The Qwen families with gated delta nets: three of four layers have one, the others attention with an output gate and
// a quarter of its channels rotating. Norm weights are stored as w - 1, but for the delta net's own.
//
//   model_type         feed-forward                 input projections of a delta net
//   qwen3_next         experts and a shared one     in_proj_qkvz, in_proj_ba: rows dealt by key head
//   qwen3_5_text       dense                        in_proj_qkv (q | k | v), in_proj_z, in_proj_b, in_proj_a
//   qwen3_5_moe_text   experts and a shared one     as qwen3_5_text
//
// linear_num_key_heads, linear_num_value_heads, linear_key_head_dim, linear_value_head_dim and linear_conv_kernel_dim
// are the sizes of the delta net. Models that see as well, qwen3_5 and qwen3_5_moe, are in qwen_vision.cc.
#include <fmt/format.h>

#include "megalith/base/error.h"
#include "megalith/model/families/decoder_internal.h"
#include "megalith/model/families/file_form_internal.h"
#include "megalith/model/families/moe_internal.h"

namespace megalith::model {

namespace {

constexpr const char* kQwen35MtpKey = "mtp_num_hidden_layers";

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

// A rule for the parts of a delta net's tensor.
hf::NameRule delta_net_rule(const std::string& theirs, const std::vector<std::string>& ours) {
  hf::NameRule rule{"model.layers.{}.linear_attn." + theirs, {}};
  for (const std::string& name : ours) rule.ours.push_back("layers.{}.attention." + name);
  return rule;
}

// Reads everything that these families have in common but the experts.
ModelConfig read_delta_net_decoder(const io::JsonFields& config) {
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
  return c;
}

// Reads the experts of these families, with their gated shared one.
void read_delta_net_experts(const io::JsonFields& config, ModelConfig& c) {
  read_qwen_experts(config, c);
  c.moe->shared_width = config.positive<int64_t>("shared_expert_intermediate_size");
  c.moe->shared_gate = true;
}

// Adds to `names` those of a delta net but its input projections.
void add_delta_net_names(hf::NameMap& names) {
  for (const auto& [theirs, ours] :
       {std::pair("A_log", "a_log"), std::pair("dt_bias", "dt_bias"), std::pair("norm.weight", "norm.weight"),
        std::pair("out_proj.weight", "out.weight")})
    names.rules.push_back(delta_net_rule(theirs, {ours}));
  // One depthwise convolution in the files, [q | k | v channels, 1, kernel]; three tensors here, so that tp can split
  // each by heads.
  names.rules.push_back(delta_net_rule("conv1d.weight", {"conv_q.weight", "conv_k.weight", "conv_v.weight"}));
  names.rules.back().channelwise = true;
  names.ignored.push_back("mtp.*");  // for models that run without multi-token prediction
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

// Experts in every layer.
Family qwen3_next_family() {
  const auto read = [](const io::JsonFields& config) {
    ModelConfig c = read_delta_net_decoder(config);
    read_delta_net_experts(config, c);
    c.mtp_layers = config.optional<int64_t>("num_nextn_predict_layers").value_or(0);
    return c;
  };
  hf::NameMap names = moe_names({.shared = "shared_expert"});
  add_delta_net_names(names);
  names.rules.push_back(delta_net_rule("in_proj_qkvz.weight", {"in_qkvz.weight"}));
  names.rules.push_back(delta_net_rule("in_proj_ba.weight", {"in_ba.weight"}));
  return {"qwen3_next", "Qwen3NextForCausalLM", read, names, add_qwen_mtp_names};
}

namespace {

ModelConfig read_qwen3_5(const io::JsonFields& config) {
  ModelConfig c = read_delta_net_decoder(config);
  c.delta_net->apart = true;
  c.mtp_layers = config.optional<int64_t>(kQwen35MtpKey).value_or(0);
  return c;
}

hf::NameMap qwen3_5_names(hf::NameMap names) {
  add_delta_net_names(names);
  names.rules.push_back(delta_net_rule("in_proj_qkv.weight", {"in_q.weight", "in_k.weight", "in_v.weight"}));
  for (const char* part : {"z", "b", "a"})
    names.rules.push_back(delta_net_rule(fmt::format("in_proj_{}.weight", part), {fmt::format("in_{}.weight", part)}));
  return names;
}

}  // namespace

// The text part of a qwen3_5 model, dense.
Family qwen3_5_text_family() {
  return {.model_type = "qwen3_5_text",
          .architecture = "Qwen3_5ForCausalLM",
          .read = read_qwen3_5,
          .names = qwen3_5_names(decoder_names()),
          .add_mtp_names = add_qwen_mtp_names,
          .mtp_key = kQwen35MtpKey};
}

// The text part of a qwen3_5_moe model. Weights of the chosen experts always add up to 1.
Family qwen3_5_moe_text_family() {
  const auto read = [](const io::JsonFields& config) {
    ModelConfig c = read_qwen3_5(config);
    read_delta_net_experts(config, c);
    c.moe->router.pre_softmax = false;
    return c;
  };
  return {.model_type = "qwen3_5_moe_text",
          .architecture = "Qwen3_5MoeForCausalLM",
          .read = read,
          .names = qwen3_5_names(moe_names({.shared = "shared_expert"})),
          .add_mtp_names = add_qwen_mtp_names,
          .mtp_key = kQwen35MtpKey,
          .read_form = read_expert_form};
}

}  // namespace megalith::model
