// Consistency of a configuration, wherever its values come from: a file, overrides or a program. Each message names the
// values and what is allowed, and all problems are listed, so that one run of the reader finds them all.
#include "megalith/model/families/model_config.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

namespace megalith::model {

namespace {

bool has_dense_layer(const ModelConfig& c) {
  return !c.moe || std::ranges::find(c.moe_layers, false) != c.moe_layers.end();
}

bool same_mlp(const ModelConfig& a, const ModelConfig& b) {
  const bool same_kind = a.activation == b.activation && a.gated_mlp == b.gated_mlp;
  // Without dense layers, their width is a number that nothing uses.
  return same_kind && (!has_dense_layer(a) || (a.mlp_width == b.mlp_width && a.mlp_bias == b.mlp_bias));
}

// Whether the same scores lead to the same choice and weights.
bool same_choice(const nn::RouterShape& a, const nn::RouterShape& b) {
  return a.experts == b.experts && a.topk == b.topk && a.score == b.score && a.pre_softmax == b.pre_softmax &&
         a.normalize == b.normalize && a.scaling == b.scaling && a.groups == b.groups && a.group_topk == b.group_topk &&
         a.group_best == b.group_best && a.expert_bias == b.expert_bias;
}

bool same_experts(const ModelConfig& a, const ModelConfig& b) {
  if (!a.moe || !b.moe) return !a.moe && !b.moe;
  return a.moe_layers == b.moe_layers && same_choice(a.moe->router, b.moe->router) && a.moe->width == b.moe->width &&
         a.moe->shared_width == b.moe->shared_width && a.moe->shared_gate == b.moe->shared_gate;
}

bool same_vision(const ModelConfig& a, const ModelConfig& b) {
  const bool left_out = (a.media && !a.vision) || (b.media && !b.vision);  // the tower of one stays in its files
  if (left_out || !a.vision || !b.vision) return left_out || (!a.vision && !b.vision);
  nn::VisionShape other = *b.vision;
  other.init_std = a.vision->init_std;  // for new weights only
  return *a.vision == other;
}

bool same_audio(const ModelConfig& a, const ModelConfig& b) {
  const bool left_out = (a.media && !a.audio) || (b.media && !b.audio);  // as above
  if (left_out || !a.audio || !b.audio) return left_out || (!a.audio && !b.audio);
  nn::AudioShape other = *b.audio;
  other.init_std = a.audio->init_std;
  other.conv_chunks = a.audio->conv_chunks;  // changes no result
  return *a.audio == other;
}

bool same_windows(const ModelConfig& a, const ModelConfig& b) {
  for (int64_t layer = 0; layer < std::min(a.num_layers, b.num_layers); ++layer)
    if (a.window(layer) != b.window(layer)) return false;
  return true;
}

}  // namespace

const io::Json* config_value(const ModelConfig& config, std::string_view key) {
  if (!config.source) return nullptr;
  const auto value_in = [&](const io::Json& object) -> const io::Json* {
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  };
  // From the top inwards: the top speaks for the whole model.
  const io::Json* part = config.source.get();
  const io::Json* value = value_in(*part);
  for (const std::string& inner : config.text_keys) {
    if (value) break;
    part = &part->at(inner);
    value = value_in(*part);
  }
  return value;
}

ModelConfig with_towers(ModelConfig config, const TowerChoice& kept) {
  if (!kept.vision) config.vision.reset();
  if (!kept.audio) config.audio.reset();
  return config;
}

ModelConfig without_towers(ModelConfig config) {
  return with_towers(std::move(config), {.vision = false, .audio = false});
}

std::vector<std::string> problems(const ModelConfig& c) {
  std::vector<std::string> found;
  const auto need = [&found](bool ok, std::string message) {
    if (!ok) found.push_back(std::move(message));
  };
  need(c.num_kv_heads > 0 && c.num_heads % c.num_kv_heads == 0,
       fmt::format("{} attention heads cannot share {} key/value heads; use a multiple of the key/value heads",
                   c.num_heads, c.num_kv_heads));
  need(c.windows.empty() || static_cast<int64_t>(c.windows.size()) == c.num_layers,
       fmt::format("there are {} layers, but attention windows for {}", c.num_layers, c.windows.size()));
  need(c.delta_net_layers.empty() || static_cast<int64_t>(c.delta_net_layers.size()) == c.num_layers,
       fmt::format("there are {} layers, but kinds of attention for {}", c.num_layers, c.delta_net_layers.size()));
  need(c.mtp_layers >= 0, fmt::format("there are {} multi-token-prediction layers; use 0 or more", c.mtp_layers));
  // head_dim is the sum of the two kinds of channels, and only the rotary ones get angles.
  if (c.latent)
    need(
        c.latent->nope_dim + c.latent->rotary_dim == c.head_dim && c.rope && c.rope->rotary_dim == c.latent->rotary_dim,
        fmt::format("a head has {} channels, but latent attention has {} without and {} with positions", c.head_dim,
                    c.latent->nope_dim, c.latent->rotary_dim));
  if (c.moe) {
    for (std::string& each : nn::problems(*c.moe, /*ep=*/1, /*etp=*/1)) found.push_back(std::move(each));
    need(static_cast<int64_t>(c.moe_layers.size()) == c.num_layers,
         fmt::format("there are {} layers, but {} entries for whether they have experts", c.num_layers,
                     c.moe_layers.size()));
  }
  if (c.vision) {
    for (std::string& each : nn::problems(*c.vision)) found.push_back(std::move(each));
    need(c.vision->out_width == c.hidden_size,
         fmt::format("rows of the vision tower have {} columns, but the model has a width of {}; they must be equal",
                     c.vision->out_width, c.hidden_size));
    const auto levels = static_cast<int64_t>(c.vision->deepstack_blocks.size());
    need(levels <= c.num_layers,
         fmt::format("the vision tower adds rows after {} layers, but there are only {}", levels, c.num_layers));
  }
  if (c.audio) {
    for (std::string& each : nn::problems(*c.audio)) found.push_back(std::move(each));
    need(c.audio->out_width == c.hidden_size,
         fmt::format("rows of the audio tower have {} columns, but the model has a width of {}; they must be equal",
                     c.audio->out_width, c.hidden_size));
  }
  // Channels rotate in pairs.
  if (c.rope) {
    const int64_t rotary = c.rope->rotary_dim;
    need(rotary > 0 && rotary % 2 == 0 && rotary <= c.head_dim,
         fmt::format("{} of {} channels of a head rotate; use an even number of at most the head size", rotary,
                     c.head_dim));
    need(c.rope->theta > 0, fmt::format("rope_theta is {}; it must be positive", c.rope->theta));
    const std::vector<int64_t>& sections = c.rope->sections;
    const int64_t divided = std::accumulate(sections.begin(), sections.end(), int64_t{0});
    need(sections.empty() || (sections.size() == 3 && std::ranges::min(sections) >= 0 && divided == rotary / 2),
         fmt::format("mrope_section is [{}]; it must be three numbers that add up to half of the {} rotating channels",
                     fmt::join(sections, ", "), rotary));
    need(c.rope->factor >= 1, fmt::format("the rope scaling factor is {}; it must be at least 1", c.rope->factor));
  }
  for (const auto& [name, value] : {std::pair("embedding", c.embedding_dropout), std::pair("hidden", c.hidden_dropout),
                                    std::pair("attention", c.attention_dropout)})
    need(value >= 0 && value < 1, fmt::format("the {} dropout is {}; it must be in [0, 1)", name, value));
  return found;
}

std::vector<std::string> differences(const ModelConfig& a, const ModelConfig& b) {
  std::vector<std::string> found;
  const auto compare = [&found](bool same, const char* what) {
    if (!same) found.emplace_back(what);
  };
  compare(a.hidden_size == b.hidden_size && a.num_layers == b.num_layers && a.vocab_size == b.vocab_size, "sizes");
  compare(a.num_heads == b.num_heads && a.num_kv_heads == b.num_kv_heads && a.head_dim == b.head_dim, "heads");
  compare(a.norm == b.norm && a.norm_epsilon == b.norm_epsilon && a.zero_centered_norms == b.zero_centered_norms,
          "norms");
  compare(a.qk_norm == b.qk_norm, "norms on queries and keys");
  compare(a.qkv_bias == b.qkv_bias && a.out_bias == b.out_bias, "biases of attention");
  compare(a.attention_scale == b.attention_scale && a.scale_by_inverse_layer == b.scale_by_inverse_layer,
          "scale of scores");
  compare(a.attention_output_gate == b.attention_output_gate, "gate on the output of attention");
  compare(same_windows(a, b), "attention windows");
  compare(a.latent == b.latent, "latent attention");
  compare(same_mlp(a, b), "MLP");
  compare(same_experts(a, b), "experts and their router");
  compare(a.learned_positions == b.learned_positions && a.rope == b.rope, "positions");
  compare(a.max_positions == b.max_positions, "longest sequence");
  compare(a.tied_embeddings == b.tied_embeddings, "output matrix");
  compare(same_vision(a, b), "vision tower");
  compare(same_audio(a, b), "audio tower");
  compare(a.mtp_layers == b.mtp_layers, "multi-token-prediction layers");
  return found;
}

}  // namespace megalith::model
