// The library's kinds of parts that mix tokens. Each derives its nn shape from a ModelConfig once, and uses it for the
// layer, its footprint and the checks alike, so that the three cannot disagree.
//
//   kind                 chosen by                       tokens interact through       split over tp
//   DeltaNetKind         delta_net_layers[layer]         a recurrent state             key heads (also over cp)
//   LatentAttentionKind  latent is set (MLA)             softmax of compressed keys    heads
//   SelfAttentionKind    otherwise                       softmax, windows, GQA         heads, key/value heads
#include <fmt/format.h>

#include <array>
#include <cmath>

#include "megalith/model/block_parts.h"
#include "megalith/model/block_shapes_internal.h"
#include "megalith/nn/attention/gated_delta_net.h"
#include "megalith/nn/attention/latent_attention.h"
#include "megalith/nn/attention/self_attention.h"

namespace megalith::model {

namespace {

// Self-attention of layer `layer`. Only two fields depend on it: the window, and gpt2's scale.
nn::AttentionShape attention_shape(const ModelConfig& config, int64_t layer) {
  nn::AttentionShape shape{.hidden = config.hidden_size,
                           .heads = config.num_heads,
                           .kv_heads = config.num_kv_heads,
                           .head_dim = config.head_dim,
                           .qkv_bias = config.qkv_bias,
                           .out_bias = config.out_bias,
                           .output_gate = config.attention_output_gate,
                           .qk_norm = std::nullopt,
                           .window = config.window(layer),
                           .scale = config.attention_scale,
                           .dropout = config.attention_dropout,
                           .init = nn::Init::normal(config.init_std),
                           .out_init = output_init(config)};
  if (config.qk_norm)
    shape.qk_norm = nn::NormShape{config.norm, config.head_dim, config.norm_epsilon, config.zero_centered_norms};
  // scores of layer i (from 0) = q·k / (sqrt(d) · (i + 1)).
  if (config.scale_by_inverse_layer) {  // gpt2's scale_attn_by_inverse_layer_idx
    const double base = shape.scale > 0 ? shape.scale : 1 / std::sqrt(static_cast<double>(config.head_dim));
    shape.scale = base / static_cast<double>(layer + 1);
  }
  return shape;
}

// Latent attention has no separate key/value heads: all heads expand the same latent. `bias` is on the down
// projections and on the output.
nn::LatentAttentionShape latent_attention_shape(const ModelConfig& config) {
  return {.hidden = config.hidden_size,
          .heads = config.num_heads,
          .q_rank = config.latent->q_rank,
          .kv_rank = config.latent->kv_rank,
          .nope_dim = config.latent->nope_dim,
          .rotary_dim = config.latent->rotary_dim,
          .value_dim = config.latent->value_dim,
          .bias = config.out_bias,
          .scale = config.attention_scale,
          .dropout = config.attention_dropout,
          .init = nn::Init::normal(config.init_std),
          .out_init = output_init(config)};
}

nn::DeltaNetShape delta_net_shape(const ModelConfig& config) {
  return {.hidden = config.hidden_size,
          .key_heads = config.delta_net->key_heads,
          .value_heads = config.delta_net->value_heads,
          .key_dim = config.delta_net->key_dim,
          .value_dim = config.delta_net->value_dim,
          .conv_kernel = config.delta_net->conv_kernel,
          .apart = config.delta_net->apart,
          .norm_epsilon = config.norm_epsilon,
          .init = nn::Init::normal(config.init_std),
          .out_init = output_init(config)};
}

// Shared by the two kinds whose query heads are divided over tp.
std::string heads_problem(int64_t heads, int tp) {
  return fmt::format("tensor_model_parallel_size {} does not divide the {} attention heads; use a divisor of them", tp,
                     heads);
}

// Multi-head and grouped-query attention. With fewer key/value heads than ranks, several ranks share one
// (nn/attention/shared_kv.h); hence the second condition on tp below.
class SelfAttentionKind : public PartKind {
 public:
  SelfAttentionKind(const ModelConfig& config, int64_t layer) : shape_(attention_shape(config, layer)) {}

  std::unique_ptr<nn::BlockPart> make(const nn::ParameterScope& scope, const PartSite& site) const override {
    return std::make_unique<nn::SelfAttention>(scope, shape_, site.cache_layer, site.tp, site.context.rng(),
                                               site.options.recompute.core_attention, site.cp);
  }
  PartFacts facts() const override {
    return {.random = shape_.dropout > 0, .cached = true, .whole_sequences = "", .host_work = ""};
  }
  std::vector<std::string> tensor_parallel_problems(int tp) const override {
    std::vector<std::string> found;
    if (shape_.heads % tp != 0) found.push_back(heads_problem(shape_.heads, tp));
    if (shape_.kv_heads % tp != 0 && tp % shape_.kv_heads != 0)
      found.push_back(
          fmt::format("tensor_model_parallel_size {} neither divides the {} key/value heads nor is a multiple of them",
                      tp, shape_.kv_heads));
    return found;
  }
  std::unique_ptr<nn::PartFootprint> footprint(const nn::FootprintScope& scope,
                                               const ModelOptions& options) const override {
    return nn::make_footprint(scope, shape_, options.recompute.core_attention);
  }

 private:
  const nn::AttentionShape shape_;
};

// DeepSeek's multi-head latent attention. The latents themselves are replicated over tp, only the heads are split.
class LatentAttentionKind : public PartKind {
 public:
  LatentAttentionKind(const ModelConfig& config, int64_t /*layer*/) : shape_(latent_attention_shape(config)) {}

  std::unique_ptr<nn::BlockPart> make(const nn::ParameterScope& scope, const PartSite& site) const override {
    return std::make_unique<nn::LatentAttention>(scope, shape_, site.cache_layer, site.tp, site.context.rng(),
                                                 recompute(site.options), site.cp);
  }
  PartFacts facts() const override {
    return {.random = shape_.dropout > 0, .cached = true, .whole_sequences = "", .host_work = ""};
  }
  std::vector<std::string> tensor_parallel_problems(int tp) const override {
    if (shape_.heads % tp == 0) return {};
    return {heads_problem(shape_.heads, tp)};
  }
  std::unique_ptr<nn::PartFootprint> footprint(const nn::FootprintScope& scope,
                                               const ModelOptions& options) const override {
    return nn::make_footprint(scope, shape_, recompute(options));
  }

 private:
  static nn::LatentRecompute recompute(const ModelOptions& options) {
    return {.core = options.recompute.core_attention, .up_proj = options.recompute.mla_up_proj};
  }

  const nn::LatentAttentionShape shape_;
};

// Qwen3-Next's gated delta net. Its work per token is constant, so it states its multiplications itself instead of
// counting like attention. Its state runs through the whole sequence: context parallelism splits its heads, too.
class DeltaNetKind : public PartKind {
 public:
  DeltaNetKind(const ModelConfig& config, int64_t /*layer*/) : shape_(delta_net_shape(config)) {}

  // All context-parallel ranks trade tokens for heads, whatever cp_comm_type says about attention.
  std::unique_ptr<nn::BlockPart> make(const nn::ParameterScope& scope, const PartSite& site) const override {
    return std::make_unique<nn::GatedDeltaNet>(scope, shape_, site.cache_layer, site.tp,
                                               nn::context_parallel(site.context, nn::ContextMode::kAllToAll).heads);
  }
  PartFacts facts() const override {
    return {.random = false,
            .cached = true,
            .whole_sequences = "",
            .host_work = "",
            .multiplications = nn::multiplications(shape_)};
  }
  std::vector<std::string> tensor_parallel_problems(int tp) const override {
    if (shape_.key_heads % tp == 0) return {};
    return {fmt::format("tensor_model_parallel_size {} does not divide the {} key heads of linear attention", tp,
                        shape_.key_heads)};
  }
  std::vector<std::string> context_parallel_problems(int tp, int cp) const override {
    if (shape_.key_heads % tp != 0) return {};  // tensor_parallel_problems tells that
    const std::string problem = nn::context_parallel_problem(shape_, tp, cp);
    return problem.empty() ? std::vector<std::string>{} : std::vector{problem};
  }
  std::unique_ptr<nn::PartFootprint> footprint(const nn::FootprintScope& scope,
                                               const ModelOptions& /*options*/) const override {
    return nn::make_footprint(scope, shape_);
  }

 private:
  const nn::DeltaNetShape shape_;
};

// A plain function per kind, as the constexpr table below needs.
template <typename Kind>
std::unique_ptr<PartKind> make_attention(const ModelConfig& config, int64_t layer) {
  return std::make_unique<Kind>(config, layer);
}

}  // namespace

// Order matters: the first kind that fits a layer is used, and a delta-net layer of a model with latent attention is a
// delta net.
std::span<const KnownKind> known_attention() {
  static constexpr std::array kKinds{
      KnownKind{[](const ModelConfig& config, int64_t layer) { return config.is_delta_net(layer); },
                make_attention<DeltaNetKind>},
      KnownKind{[](const ModelConfig& config, int64_t) { return config.latent.has_value(); },
                make_attention<LatentAttentionKind>},
      KnownKind{[](const ModelConfig&, int64_t) { return true; }, make_attention<SelfAttentionKind>}};
  return kKinds;
}

}  // namespace megalith::model
