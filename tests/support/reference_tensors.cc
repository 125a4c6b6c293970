#include <ATen/ATen.h>

#include <cmath>

#include "tests/support/reference_model.h"

namespace megalith::testing {

namespace {

using Shapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;

void add_gpt2_layer(Shapes& list, const ReferenceConfig& c, const std::string& name) {
  const int64_t h = c.hidden_size, f = c.intermediate_size;
  for (const char* norm : {"ln_1", "ln_2"})
    for (const char* part : {".weight", ".bias"}) list.push_back({name + norm + part, {h}});
  const auto conv = [&](const std::string& what, int64_t in, int64_t out) {
    list.push_back({name + what + ".weight", {in, out}});
    list.push_back({name + what + ".bias", {out}});
  };
  conv("attn.c_attn", h, 3 * h);
  conv("attn.c_proj", h, h);
  conv("mlp.c_fc", h, f);
  conv("mlp.c_proj", f, h);
}

// The tensors of one layer of the other families.
class LayerTensors {
 public:
  LayerTensors(Shapes& list, const ReferenceConfig& config, std::string name)
      : list_(list), c_(config), name_(std::move(name)) {}

  void add(int64_t layer) {
    norm("input_layernorm", c_.hidden_size);
    if (c_.has_delta_net(layer))
      add_delta_net();
    else if (c_.latent)
      add_latent();
    else
      add_attention();
    norm("post_attention_layernorm", c_.hidden_size);
    if (c_.has_experts(layer))
      add_experts();
    else
      add_mlp("mlp.", c_.intermediate_size, c_.mlp_bias);
  }

  // Adds the tensors that only a multi-token-prediction layer has.
  void add_mtp() {
    for (const char* each : {"enorm", "hnorm", "shared_head.norm"}) norm(each, c_.hidden_size);
    linear("eh_proj", 2 * c_.hidden_size, c_.hidden_size);
  }

 private:
  void vector(const std::string& what, int64_t size) { list_.push_back({name_ + what, {size}}); }
  void norm(const std::string& what, int64_t size) {
    vector(what + ".weight", size);
    if (c_.layer_norm) vector(what + ".bias", size);
  }
  void linear(const std::string& what, int64_t in, int64_t out, bool bias = false) {
    list_.push_back({name_ + what + ".weight", {out, in}});
    if (bias) vector(what + ".bias", out);
  }
  void add_mlp(const std::string& what, int64_t width, bool bias) {
    if (c_.gated_mlp) linear(what + "gate_proj", c_.hidden_size, width, bias);
    linear(what + "up_proj", c_.hidden_size, width, bias);
    linear(what + "down_proj", width, c_.hidden_size, bias);
  }

  void add_attention() {
    const int64_t h = c_.hidden_size, q = c_.num_heads * c_.head_dim, kv = c_.num_kv_heads * c_.head_dim;
    linear("self_attn.q_proj", h, c_.gated_attention ? 2 * q : q, c_.qkv_bias);
    linear("self_attn.k_proj", h, kv, c_.qkv_bias);
    linear("self_attn.v_proj", h, kv, c_.qkv_bias);
    linear("self_attn.o_proj", q, h, c_.out_bias);
    if (!c_.qk_norm) return;
    norm("self_attn.q_norm", c_.head_dim);
    norm("self_attn.k_norm", c_.head_dim);
  }

  void add_latent() {
    const int64_t h = c_.hidden_size, n = c_.num_heads;
    const ReferenceLatent& l = *c_.latent;
    if (l.q_rank > 0) {
      linear("self_attn.q_a_proj", h, l.q_rank);
      vector("self_attn.q_a_layernorm.weight", l.q_rank);
    }
    linear(l.q_rank > 0 ? "self_attn.q_b_proj" : "self_attn.q_proj", l.q_rank > 0 ? l.q_rank : h,
           n * (l.nope + l.rope));
    linear("self_attn.kv_a_proj_with_mqa", h, l.kv_rank + l.rope);
    vector("self_attn.kv_a_layernorm.weight", l.kv_rank);
    linear("self_attn.kv_b_proj", l.kv_rank, n * (l.nope + l.value));
    linear("self_attn.o_proj", n * l.value, h);
  }

  void add_delta_net() {
    const int64_t h = c_.hidden_size;
    const ReferenceDeltaNet& d = *c_.delta_net;
    const int64_t keys = d.key_heads * d.key_dim, values = d.value_heads * d.value_dim;
    if (d.apart) {
      linear("linear_attn.in_proj_qkv", h, 2 * keys + values);
      linear("linear_attn.in_proj_z", h, values);
      linear("linear_attn.in_proj_b", h, d.value_heads);
      linear("linear_attn.in_proj_a", h, d.value_heads);
    } else {
      linear("linear_attn.in_proj_qkvz", h, 2 * keys + 2 * values);
      linear("linear_attn.in_proj_ba", h, 2 * d.value_heads);
    }
    list_.push_back({name_ + "linear_attn.conv1d.weight", {2 * keys + values, 1, d.kernel}});
    vector("linear_attn.A_log", d.value_heads);
    vector("linear_attn.dt_bias", d.value_heads);
    vector("linear_attn.norm.weight", d.value_dim);
    linear("linear_attn.out_proj", values, h);
  }

  void add_experts() {
    const int64_t h = c_.hidden_size;
    const ReferenceExperts& x = *c_.experts;
    const bool mixtral = c_.model_type == "mixtral";
    const std::string what = mixtral ? "block_sparse_moe." : "mlp.";
    linear(what + "gate", h, x.count);
    if (x.sigmoid) vector(what + "gate.e_score_correction_bias", x.count);
    for (int64_t e = 0; e < x.count; ++e) {
      const std::string expert = what + "experts." + std::to_string(e) + ".";
      if (!mixtral) {
        add_mlp(expert, x.width, false);
        continue;
      }
      linear(expert + "w1", h, x.width);
      linear(expert + "w3", h, x.width);
      linear(expert + "w2", x.width, h);
    }
    if (x.shared_width > 0)
      add_mlp(what + (x.shared_gate ? "shared_expert." : "shared_experts."), x.shared_width, false);
    if (x.shared_gate) linear(what + "shared_expert_gate", h, 1);
  }

  Shapes& list_;
  const ReferenceConfig& c_;
  std::string name_;
};

}  // namespace

Shapes reference_tensors(const ReferenceConfig& config) {
  Shapes list;
  const int64_t h = config.hidden_size, v = config.vocab_size;
  list.push_back({config.is_gpt2() ? "transformer.wte.weight" : "model.embed_tokens.weight", {v, h}});
  if (config.is_gpt2()) list.push_back({"transformer.wpe.weight", {config.max_positions, h}});
  if (config.learned_positions) list.push_back({"model.embed_positions.weight", {config.max_positions, h}});
  for (int64_t i = 0; i < config.num_layers; ++i) {
    if (config.is_gpt2())
      add_gpt2_layer(list, config, "transformer.h." + std::to_string(i) + ".");
    else
      LayerTensors(list, config, "model.layers." + std::to_string(i) + ".").add(i);
  }
  for (int64_t i = config.num_layers; i < config.num_layers + config.mtp; ++i) {
    LayerTensors layer(list, config, "model.layers." + std::to_string(i) + ".");
    layer.add(i);
    layer.add_mtp();
  }
  list.push_back({config.is_gpt2() ? "transformer.ln_f.weight" : "model.norm.weight", {h}});
  if (config.is_gpt2()) list.push_back({"transformer.ln_f.bias", {h}});
  if (config.layer_norm) list.push_back({"model.norm.bias", {h}});
  if (!config.tied) list.push_back({"lm_head.weight", {v, h}});
  return list;
}

bool is_reference_buffer(const std::string& name) { return name.ends_with("e_score_correction_bias"); }

at::Tensor reference_random_weight(const std::string& name, const std::vector<int64_t>& shape,
                                   const ReferenceConfig& config, at::Generator& generator) {
  const at::Tensor numbers = at::randn(shape, generator, at::kFloat);
  const bool embedding = name.ends_with("wte.weight") || name.ends_with("wpe.weight") ||
                         name.ends_with("embed_tokens.weight") || name.ends_with("embed_positions.weight");
  if (embedding) return numbers;
  if (shape.size() == 1) {
    // Around 0, or around 1: weights of norms, but for those that say how far they are from 1.
    const bool around_one =
        name.ends_with("norm.weight") && (!config.centered_norms || name.ends_with("linear_attn.norm.weight"));
    return numbers * 0.3 + (around_one || name.ends_with("ln_1.weight") || name.ends_with("ln_2.weight") ||
                                    name.ends_with("ln_f.weight")
                                ? 1
                                : 0);
  }
  const bool transposed = config.is_gpt2() && name != "lm_head.weight";
  const int64_t in = transposed ? shape[0] : shape.back();  // for a convolution, its kernel
  return numbers * (1.5 / std::sqrt(static_cast<double>(in)));
}

}  // namespace megalith::testing
