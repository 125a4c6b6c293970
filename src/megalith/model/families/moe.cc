// Families with experts: mixtral, qwen2_moe, qwen3_moe, glm4_moe. They share the structure of their names (ExpertNames)
// and differ in the router and in a few keys:
//
//   family     experts                             router                                      shared expert
//   mixtral    num_local_experts, every layer      softmax over the chosen                     none
//   qwen2_moe  num_experts, decoder_sparse_step    softmax over all (norm_topk_prob: chosen)   one, with a sigmoid gate
//   qwen3_moe  as qwen2_moe, mlp_only_layers       as qwen2_moe                                none
//   glm4_moe   n_routed_experts, after             DeepSeek's: sigmoid, bias, groups,          n_shared_experts
//              first_k_dense_replace layers        routed_scaling_factor
#include <fmt/format.h>

#include <algorithm>

#include "megalith/model/families/decoder_internal.h"
#include "megalith/model/families/moe_internal.h"

namespace megalith::model {

// Files number experts one by one, model.layers.3.mlp.experts.17.up_proj.weight, and so do the model's own names.
hf::NameMap moe_names(const ExpertNames& theirs) {
  hf::NameMap map = decoder_names();
  const std::string block = "model.layers.{}." + theirs.block + ".";
  const auto add = [&](const std::string& name, const std::string& ours) {
    map.rules.push_back({block + name, {"layers.{}.mlp." + ours}});
  };
  add("gate.weight", "router.weight");
  add("gate.e_score_correction_bias", "router.bias");
  add("experts.{}." + theirs.gate + ".weight", "experts.{}.gate.weight");
  add("experts.{}." + theirs.up + ".weight", "experts.{}.up.weight");
  add("experts.{}." + theirs.down + ".weight", "experts.{}.down.weight");
  if (theirs.shared.empty()) return map;
  for (const char* part : {"gate", "up", "down"})
    add(fmt::format("{}.{}_proj.weight", theirs.shared, part), fmt::format("shared.{}.weight", part));
  add(theirs.shared + "_gate.weight", "shared_gate.weight");
  return map;
}

nn::MoeShape read_experts(const io::JsonFields& config, const char* number_key) {
  nn::MoeShape moe;
  const char* key = config.has(number_key) ? number_key : "num_local_experts";
  moe.router.experts = config.positive<int64_t>(key);
  moe.router.topk = config.positive<int64_t>("num_experts_per_tok");
  const double coeff = config.optional<double>("router_aux_loss_coef").value_or(0);
  // transformers adds the loss only if the configuration asks for the logits.
  if (config.optional<bool>("output_router_logits").value_or(false) && coeff > 0)
    moe.router.losses.push_back({nn::BalanceLoss::Kind::kBatch, coeff});
  return moe;
}

void read_sigmoid_router(const io::JsonFields& config, nn::RouterShape& router) {
  router.score = nn::ScoreFunction::kSigmoid;
  router.dtype = at::kFloat;  // as transformers multiplies for these routers, whatever the model's type
  router.expert_bias = true;
  // e_score_correction_bias is trained by its own rule (DeepSeek-V3, section 2.1.2), not by gradients.
  router.bias_update_rate = 0;  // the bias of a checkpoint stays fixed unless a run overrides this
  router.normalize = config.optional<bool>("norm_topk_prob").value_or(true);
  router.scaling = config.optional_positive<double>("routed_scaling_factor").value_or(1);
  router.groups = config.optional_positive<int64_t>("n_group").value_or(1);
  router.group_topk = config.optional_positive<int64_t>("topk_group").value_or(router.groups);
  router.group_best = 2;  // a constant in transformers
}

namespace {

// Returns which layers of a qwen model have experts: every n-th, except those named in mlp_only_layers.
std::vector<bool> sparse_layers(const io::JsonFields& config, int64_t layers) {
  const auto step = config.optional_positive<int64_t>("decoder_sparse_step").value_or(1);
  const auto dense = config.optional<std::vector<int64_t>>("mlp_only_layers").value_or(std::vector<int64_t>{});
  std::vector<bool> sparse;
  for (int64_t layer = 0; layer < layers; ++layer)
    sparse.push_back((layer + 1) % step == 0 && std::ranges::find(dense, layer) == dense.end());
  return sparse;
}

}  // namespace

void read_qwen_experts(const io::JsonFields& config, ModelConfig& c) {
  c.moe = read_experts(config, "num_experts");
  c.moe->width = config.positive<int64_t>("moe_intermediate_size");
  // A softmax over all experts, divided by the sum of the chosen, equals a softmax over the chosen alone.
  c.moe->router.pre_softmax = !config.optional<bool>("norm_topk_prob").value_or(false);
  c.moe_layers = sparse_layers(config, c.num_layers);
}

// Mistral with experts in every layer.
Family mixtral_family() {
  const auto read = [](const io::JsonFields& config) {
    ModelConfig c = read_decoder(config);
    if (const auto window = config.optional_positive<int64_t>("sliding_window"))
      c.windows.assign(static_cast<size_t>(c.num_layers), *window);
    c.moe = read_experts(config, "num_local_experts");
    // mixtral has no key of its own for the width: intermediate_size is that of an expert.
    c.moe->width = c.mlp_width;
    c.moe->router.jitter = config.optional<double>("router_jitter_noise").value_or(0);
    c.moe_layers.assign(static_cast<size_t>(c.num_layers), true);
    return c;
  };
  return {"mixtral", "MixtralForCausalLM", read,
          moe_names({.block = "block_sparse_moe", .gate = "w1", .up = "w3", .down = "w2", .shared = ""})};
}

// Qwen2 with experts and a gated shared one.
Family qwen2_moe_family() {
  const auto read = [](const io::JsonFields& config) {
    ModelConfig c = read_decoder(config);
    c.qkv_bias = config.optional<bool>("qkv_bias").value_or(true);
    c.windows = read_windows(config, c.num_layers);
    read_qwen_experts(config, c);
    c.moe->shared_width = config.positive<int64_t>("shared_expert_intermediate_size");
    c.moe->shared_gate = true;
    return c;
  };
  return {"qwen2_moe", "Qwen2MoeForCausalLM", read, moe_names({.shared = "shared_expert"})};
}

// Qwen3 with experts.
Family qwen3_moe_family() {
  const auto read = [](const io::JsonFields& config) {
    ModelConfig c = read_decoder(config);
    c.qk_norm = true;
    c.qkv_bias = c.out_bias = config.optional<bool>("attention_bias").value_or(false);
    c.windows = read_windows(config, c.num_layers);
    read_qwen_experts(config, c);
    return c;
  };
  return {"qwen3_moe", "Qwen3MoeForCausalLM", read, moe_names({.shared = ""})};
}

// DeepSeek's router and shared experts on grouped-query attention; the first layers are dense.
Family glm4_moe_family() {
  const auto read = [](const io::JsonFields& config) {
    ModelConfig c = read_decoder(config);
    c.qk_norm = config.optional<bool>("use_qk_norm").value_or(false);
    c.qkv_bias = config.optional<bool>("attention_bias").value_or(false);
    c.moe = read_experts(config, "n_routed_experts");
    read_sigmoid_router(config, c.moe->router);
    c.moe->width = config.positive<int64_t>("moe_intermediate_size");
    c.moe->shared_width = c.moe->width * config.optional<int64_t>("n_shared_experts").value_or(0);
    const auto dense = config.optional<int64_t>("first_k_dense_replace").value_or(0);
    for (int64_t layer = 0; layer < c.num_layers; ++layer) c.moe_layers.push_back(layer >= dense);
    c.mtp_layers = config.optional<int64_t>("num_nextn_predict_layers").value_or(0);
    return c;
  };
  return {"glm4_moe", "Glm4MoeForCausalLM", read, moe_names({.shared = "shared_experts"}), add_numbered_mtp_names};
}

}  // namespace megalith::model
