// ModelConfig: what a model is made of, resolved: every family's config.json comes to these fields.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "megalith/hf/json_text.h"
#include "megalith/nn/moe/moe_shape.h"
#include "megalith/ops/activation.h"
#include "megalith/ops/norm.h"
#include "megalith/ops/rope.h"

namespace megalith::model {

struct ModelConfig {
  std::string family;  // model_type: "llama"

  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  int64_t mlp_width = 0;
  int64_t vocab_size = 0;
  int64_t max_positions = 0;

  ops::NormKind norm = ops::NormKind::kRms;
  double norm_epsilon = 1e-6;
  bool qk_norm = false;  // on each query and key head

  bool qkv_bias = false;
  bool out_bias = false;                // of the attention's output projection
  std::vector<int64_t> windows;         // per layer, tokens a query sees; 0: all. Empty: all layers see all
  double attention_scale = 0;           // 0: 1/sqrt(head_dim)
  bool scale_by_inverse_layer = false;  // layer i divides its scores by i + 1, too
  ops::Activation activation = ops::Activation::kSilu;
  bool gated_mlp = true;
  bool mlp_bias = false;
  // Layers with experts in place of the MLP. Of the shape the router, the widths and the gate are set here; the rest
  // are the model's.
  std::optional<nn::MoeShape> moe;
  std::vector<bool> moe_layers;  // per layer, whether it has experts; empty without `moe`

  bool learned_positions = false;
  std::optional<ops::RopeSettings> rope;
  bool tied_embeddings = false;  // the head is the embedding

  double embedding_dropout = 0;
  double hidden_dropout = 0;  // at the end of each residual branch
  double attention_dropout = 0;
  double init_std = 0.02;

  at::ScalarType dtype = at::kFloat;  // of the checkpoint
  // config.json as it was read, to be written back with what changed; keys that are not ours survive.
  std::shared_ptr<const hf::Json> source;

  bool is_moe(int64_t layer) const { return moe && moe_layers.at(static_cast<size_t>(layer)); }
  int64_t window(int64_t layer) const { return windows.empty() ? 0 : windows.at(static_cast<size_t>(layer)); }
};

// Every field that does not fit another, each with what is allowed; empty when all is well.
std::vector<std::string> problems(const ModelConfig& config);

}  // namespace megalith::model
