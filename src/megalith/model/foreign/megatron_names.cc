// A layer of Megatron-Core, with what it holds of ours:
//
//   input_layernorm.weight, or self_attention.linear_qkv.layer_norm_weight       attention_norm
//   self_attention.linear_qkv        rows of each group of heads: its queries, its key, its value
//   self_attention.q_layernorm, k_layernorm, linear_proj                          q_norm, k_norm, o
//   self_attention.linear_q_down_proj, linear_q_up_proj, linear_kv_…, linear_q_proj    latent attention
//   pre_mlp_layernorm.weight, or mlp.linear_fc1.layer_norm_weight                mlp_norm
//   mlp.linear_fc1                   gate, then up                               mlp.linear_fc2: down
//   mlp.router.weight, expert_bias; mlp.experts.E.linear_fc1, linear_fc2; mlp.shared_experts.…, gate_weight
//
// Transformer Engine fuses a norm into the linear layer that follows it, so norms have two names each.
#include "megalith/model/foreign/megatron_names.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <map>

#include "megalith/base/error.h"
#include "megalith/base/text.h"
#include "megalith/model/families/family.h"

namespace megalith::model {

namespace {

using Take = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor all(const at::Tensor& whole) { return whole; }

// The module of a layer or of the model, and the rest of one of our names: "attention.q" and "weight".
struct Word {
  std::string module, kind;
};
Word last_word(const std::string& name) {
  const size_t dot = name.rfind('.');
  return {name.substr(0, dot), name.substr(dot + 1)};
}

// Names that a norm may have: one of its own, or as a part of the linear layers that follow it.
std::vector<std::string> norm_names(const std::string& own, const std::vector<std::string>& followed_by,
                                    const std::string& kind) {
  std::vector<std::string> names{own + "." + kind};
  for (const std::string& linear : followed_by) names.push_back(linear + ".layer_norm_" + kind);
  return names;
}

// The origin of one of our tensors in a layer. `names` are relative to the layer.
struct Part {
  std::vector<std::string> names;
  std::vector<int64_t> shape;
  int64_t parts = 1;
  Take take = all;
};

// Query, key or value: rows of the fused projection, which go group by group.
Part qkv_part(const ModelConfig& config, const Word& word, const hf::GlobalTensor& ours) {
  check<ConfigError>(!config.attention_output_gate,
                     "attention with an output gate, as {} models have, is not read from checkpoints of Megatron-Core",
                     config.family);
  const int64_t groups = config.num_kv_heads, heads = config.num_heads / groups, d = config.head_dim;
  const bool is_query = word.module == "attention.q";
  const int64_t first = is_query ? 0 : (word.module == "attention.k" ? heads : heads + 1), count = is_query ? heads : 1;
  std::vector<int64_t> shape = ours.shape, by_group = ours.shape;
  shape[0] = groups * (heads + 2) * d;
  by_group[0] = (heads + 2) * d;
  by_group.insert(by_group.begin(), groups);
  return {{"self_attention.linear_qkv." + word.kind},
          shape,
          1,
          [by_group, first, count, d, own = ours.shape](const at::Tensor& whole) {
            return whole.reshape(by_group).narrow(1, first * d, count * d).reshape(own);
          }};
}

// Gate or up of `block`; without a gate, up is all of linear_fc1.
Part fc1_part(const ModelConfig& config, const std::string& block, bool is_gate, const std::string& kind,
              const hf::GlobalTensor& ours) {
  const std::string name = block + ".linear_fc1." + kind;
  if (!config.gated_mlp) return {{name}, ours.shape};
  std::vector<int64_t> shape = ours.shape;
  shape[0] *= 2;
  const int64_t first = is_gate ? 0 : ours.shape[0];
  return {{name}, shape, 2, [first, rows = ours.shape[0]](const at::Tensor& whole) {
            return whole.narrow(0, first, rows);
          }};
}

std::optional<Part> attention_part(const ModelConfig& config, const Word& word, const hf::GlobalTensor& ours) {
  static const std::map<std::string, std::string> kNames{
      {"attention.o", "linear_proj"},          {"attention.q_norm", "q_layernorm"},
      {"attention.k_norm", "k_layernorm"},     {"attention.q_down", "linear_q_down_proj"},
      {"attention.q_up", "linear_q_up_proj"},  {"attention.kv_down", "linear_kv_down_proj"},
      {"attention.kv_up", "linear_kv_up_proj"}};
  const std::string self = "self_attention.";
  if (config.latent && word.module == "attention.q") return Part{{self + "linear_q_proj." + word.kind}, ours.shape};
  if (word.module == "attention.q" || word.module == "attention.k" || word.module == "attention.v")
    return qkv_part(config, word, ours);
  if (word.module == "attention.q_latent_norm")
    return Part{norm_names(self + "q_layernorm", {self + "linear_q_up_proj"}, word.kind), ours.shape};
  if (word.module == "attention.kv_latent_norm")
    return Part{norm_names(self + "kv_layernorm", {self + "linear_kv_up_proj"}, word.kind), ours.shape};
  const auto found = kNames.find(word.module);
  if (found == kNames.end()) return std::nullopt;
  return Part{{self + found->second + "." + word.kind}, ours.shape};
}

std::optional<Part> feed_forward_part(const ModelConfig& config, const Word& word, const hf::GlobalTensor& ours) {
  if (word.module == "mlp.router")
    return Part{{word.kind == "bias" ? "mlp.router.expert_bias" : "mlp.router.weight"}, ours.shape};
  if (word.module == "mlp.shared_gate") return Part{{"mlp.shared_experts.gate_weight"}, ours.shape};
  const Word of = last_word(word.module);  // "mlp.experts.3" and "gate"
  const bool is_shared = of.module == "mlp.shared";
  if (!is_shared && of.module != "mlp" && !of.module.starts_with("mlp.experts.")) return std::nullopt;
  const std::string block = is_shared ? "mlp.shared_experts" : of.module;
  if (of.kind == "down") return Part{{block + ".linear_fc2." + word.kind}, ours.shape};
  if (of.kind == "gate" || of.kind == "up") return fc1_part(config, block, of.kind == "gate", word.kind, ours);
  return std::nullopt;
}

// A tensor of a layer, by its name in the layer.
std::optional<Part> layer_part(const ModelConfig& config, const std::string& name, const hf::GlobalTensor& ours) {
  const Word word = last_word(name);
  const std::string self = "self_attention.";
  if (word.module == "attention_norm")
    return Part{norm_names("input_layernorm", {self + "linear_qkv", self + "linear_q_proj"}, word.kind), ours.shape};
  if (word.module == "mlp_norm")
    return Part{norm_names("pre_mlp_layernorm", {"mlp.linear_fc1"}, word.kind), ours.shape};
  if (name.starts_with("attention.")) return attention_part(config, word, ours);
  return feed_forward_part(config, word, ours);
}

// Rows that fill the vocabulary up to a size that tensor-parallel ranks can share are left out.
Part vocabulary_part(const std::string& name, const hf::GlobalTensor& ours) {
  std::vector<int64_t> shape = ours.shape;
  shape[0] = -shape[0];  // or more: padding
  return {{name}, shape, 1, [rows = ours.shape[0]](const at::Tensor& whole) { return whole.narrow(0, 0, rows); }};
}

// A tensor outside of layers, by its name in the model or in a multi-token-prediction layer.
std::optional<Part> model_part(const std::string& name, const hf::GlobalTensor& ours) {
  const Word word = last_word(name);
  if (name == "embedding.weight") return vocabulary_part("embedding.word_embeddings.weight", ours);
  if (name == "head.weight") return vocabulary_part("output_layer.weight", ours);
  if (name == "position_embedding.weight") return Part{{"embedding.position_embeddings.weight"}, ours.shape};
  if (word.module == "final_norm") return Part{{"decoder.final_layernorm." + word.kind}, ours.shape};
  return std::nullopt;
}
std::optional<Part> mtp_part(const std::string& name, const hf::GlobalTensor& ours) {
  static const std::map<std::string, std::string> kNames{
      {"embedding_norm", "enorm"}, {"hidden_norm", "hnorm"}, {"projection", "eh_proj"}, {"norm", "final_layernorm"}};
  const Word word = last_word(name);
  const auto found = kNames.find(word.module);
  if (found == kNames.end()) return std::nullopt;
  return Part{{found->second + "." + word.kind}, ours.shape};
}

// Our tensor in the part of the model that begins with `blocks`: the prefixes that its names may have.
struct Prefixed {
  std::vector<std::string> blocks;
  std::optional<Part> part;
};
Prefixed find_part(const ModelConfig& config, const hf::GlobalTensor& ours) {
  const std::vector<std::string> words = split(ours.name, '.');
  const auto rest = [&words](std::ptrdiff_t from) {
    return fmt::format("{}", fmt::join(words.begin() + from, words.end(), "."));
  };
  if (words[0] == "layers" && words.size() > 3)
    return {{fmt::format("decoder.layers.{}.", words[1])}, layer_part(config, rest(2), ours)};
  if (words[0] == "mtp" && words.size() > 3) {
    const std::string layer = fmt::format("mtp.layers.{}.", words[1]);
    if (words[2] != "layer") return {{layer}, mtp_part(rest(2), ours)};
    return {{layer + "transformer_layer.", layer + "mtp_model_layer."}, layer_part(config, rest(3), ours)};
  }
  return {{""}, model_part(ours.name, ours)};
}

}  // namespace

MegatronSource megatron_source(const MegatronModel& model, const ModelConfig& config, const hf::GlobalTensor& ours) {
  const auto [blocks, part] = find_part(config, ours);
  check<ConfigError>(part.has_value(),
                     "{} of {} models is not read from checkpoints of Megatron-Core; convert the checkpoint with the"
                     " program that wrote it",
                     ours.name, config.family);
  MegatronSource source{blocks[0] + part->names[0], part->shape, part->parts, part->take};
  for (const std::string& block : blocks)
    for (const std::string& name : part->names)
      if (model.has(block + name)) {
        source.name = block + name;
        return source;
      }
  return source;
}

}  // namespace megalith::model
