// Consistency of a configuration, wherever its values come from: a file, overrides or a program. Each message names the
// values and what is allowed, and all problems are listed, so that one run of the reader finds them all.
#include "megalith/model/families/model_config.h"

#include <fmt/format.h>

namespace megalith::model {

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
  // Channels rotate in pairs.
  if (c.rope) {
    const int64_t rotary = c.rope->rotary_dim;
    need(rotary > 0 && rotary % 2 == 0 && rotary <= c.head_dim,
         fmt::format("{} of {} channels of a head rotate; use an even number of at most the head size", rotary,
                     c.head_dim));
    need(c.rope->theta > 0, fmt::format("rope_theta is {}; it must be positive", c.rope->theta));
    need(c.rope->factor >= 1, fmt::format("the rope scaling factor is {}; it must be at least 1", c.rope->factor));
  }
  for (const auto& [name, value] : {std::pair("embedding", c.embedding_dropout), std::pair("hidden", c.hidden_dropout),
                                    std::pair("attention", c.attention_dropout)})
    need(value >= 0 && value < 1, fmt::format("the {} dropout is {}; it must be in [0, 1)", name, value));
  return found;
}

}  // namespace megalith::model
